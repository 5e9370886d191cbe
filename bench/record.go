package main

import (
	"fmt"
	"os"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/bench/internal/stage"
	"github.com/latchkey-dev/latchkey/test/support/figures"
)

// The files that a report writes, seen from the folder bench.
const (
	recordFile = "record.json"
	pageFile   = "../docs/benchmarks.md"
)

// record puts the medians of what each peer has taken in its runs into the record, and the record
// into the tables of the page.
func (s settings) record(measured map[string][]stage.Values) error {
	recorded, err := figures.Read(recordFile)
	if err != nil {
		return err
	}
	for peer, runs := range measured {
		for scenario, values := range medians(runs) {
			recorded.Set(scenario, peer, figures.Measurement{
				From:   fmt.Sprintf("commit %.12s, runs: %d", s.build, runsOf(scenario, runs)),
				Values: values,
			})
		}
	}
	if err := recorded.Write(recordFile); err != nil {
		return err
	}
	page, err := os.ReadFile(pageFile)
	if err != nil {
		return errors.WithStack(err)
	}
	updated, err := recorded.Update(string(page))
	if err != nil {
		return err
	}
	fmt.Println("Writing", recordFile, "and the tables of", pageFile)
	return errors.WithStack(os.WriteFile(pageFile, []byte(updated), 0o644))
}

// runsOf counts the runs that measured a scenario.
func runsOf(scenario string, runs []stage.Values) (n int) {
	for _, values := range runs {
		if values[scenario] != nil {
			n++
		}
	}
	return n
}
