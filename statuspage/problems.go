package statuspage

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/advice"
)

// maxNamed is how many extensions a group of problems names.
const maxNamed = 3

// problem is a problem of one extension, and what to do about it.
type problem struct {
	clustercache.Problem
	Advice string `json:"advice,omitempty"`
}

// problemGroup is what is wrong with extensions for one reason.
type problemGroup struct {
	State      string    `json:"state"` // Disconnected or Degraded
	Reason     string    `json:"reason"`
	Extensions int       `json:"extensions"`
	Latest     time.Time `json:"latest,omitzero"` // since when the latest of them has it
	Advice     string    `json:"advice,omitempty"`
	// Named are the extensions that have it since the shortest time, and Message that of the first.
	Named   []string `json:"named"`
	Message string   `json:"message,omitempty"`
}

// groups collects the problems of all extensions.
type groups map[[2]string]*groupOf

// groupOf is a group, and its latest rows, the latest one first.
type groupOf struct {
	count  int
	latest []*row
}

// add adds an extension.
func (g *groups) add(r *row) {
	if !isProblem(r.State) {
		return
	}
	if *g == nil {
		*g = groups{}
	}
	key := [2]string{r.State, r.Reason}
	of := (*g)[key]
	if of == nil {
		of = &groupOf{}
		(*g)[key] = of
	}
	of.count++
	at, _ := slices.BinarySearchFunc(of.latest, r, compareLatest)
	if of.latest = slices.Insert(of.latest, at, r); len(of.latest) > maxNamed {
		of.latest = of.latest[:maxNamed]
	}
}

// compareLatest orders rows by time, the latest one first.
func compareLatest(x, y *row) int {
	return cmp.Or(y.Since.Compare(x.Since), strings.Compare(x.Extension, y.Extension))
}

// sorted returns the groups: those that are not connected first, and the largest one first.
func (g groups) sorted() []problemGroup {
	all := make([]problemGroup, 0, len(g))
	for key, of := range g {
		group := problemGroup{
			State:      key[0],
			Reason:     key[1],
			Extensions: of.count,
			Latest:     of.latest[0].Since,
			Advice:     advice.For(key[1]),
			Message:    of.latest[0].Message,
		}
		for _, r := range of.latest {
			group.Named = append(group.Named, r.Extension)
		}
		all = append(all, group)
	}
	slices.SortFunc(all, func(x, y problemGroup) int {
		return cmp.Or(cmp.Compare(severity(x.State), severity(y.State)), cmp.Compare(y.Extensions, x.Extensions),
			strings.Compare(x.Reason, y.Reason))
	})
	return all
}
