package main

import (
	"regexp"
	"strings"

	"github.com/pkg/errors"
)

// description is what a comment of values.yaml says about a value.
type description struct {
	path string // metrics.port, or tenants[].names
	text string
}

var (
	firstLine = regexp.MustCompile(`^ *# (?:([A-Za-z.\[\]]+) )?-- (.+)$`)
	nextLine  = regexp.MustCompile(`^ *# (.+)$`)
	keyLine   = regexp.MustCompile(`^((?:  )*)([A-Za-z]+):`)
)

// descriptionsOf returns the descriptions in values.yaml, in their order.
func descriptionsOf(values string) (found []description, err error) {
	var parents []string
	waiting := -1 // the description of the next key
	open := false // whether a comment continues the last description
	for _, line := range strings.Split(values, "\n") {
		if match := firstLine.FindStringSubmatch(line); match != nil {
			if match[1] == "" {
				if waiting >= 0 {
					return nil, errors.Errorf("%q describes no value", found[waiting].text)
				}
				waiting = len(found)
			}
			found = append(found, description{path: match[1], text: match[2]})
			open = true
			continue
		}
		if match := nextLine.FindStringSubmatch(line); match != nil && open {
			found[len(found)-1].text += " " + match[1]
			continue
		}
		open = false
		match := keyLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		depth := len(match[1]) / 2
		if depth > len(parents) {
			return nil, errors.Errorf("%q has no parent", line)
		}
		parents = append(parents[:depth], match[2])
		if waiting >= 0 {
			found[waiting].path = strings.Join(parents, ".")
			waiting = -1
		}
	}
	if waiting >= 0 {
		return nil, errors.Errorf("%q describes no value", found[waiting].text)
	}
	return found, nil
}
