package statuspage

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/advice"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

const (
	// pageSize is how many rows a page of the table has by default, and maxPageSize how many at most.
	pageSize    = 50
	maxPageSize = 500
	// maxSearch is the longest text to search for, in bytes, and maxWords how many words it has at
	// most.
	maxSearch = 256
	maxWords  = 16
)

// query is what a viewer wants to see.
type query struct {
	words         []string // in lower case; each must occur
	state, reason string
	troubled      bool // only those with a problem
	sort          string
	descending    bool
	page, size    int
	extension     string
}

// columns has the comparison of each column to sort by.
var columns = map[string]func(x, y *row) int{
	"extension": func(x, y *row) int { return strings.Compare(x.Extension, y.Extension) },
	// Those with problems first, and of these the latest first.
	"state": func(x, y *row) int {
		if order := cmp.Compare(severity(x.State), severity(y.State)); order != 0 || !isProblem(x.State) {
			return order
		}
		return y.Since.Compare(x.Since)
	},
	"reason":   func(x, y *row) int { return strings.Compare(x.Reason, y.Reason) },
	"since":    func(x, y *row) int { return x.Since.Compare(y.Since) },
	"identity": func(x, y *row) int { return strings.Compare(x.Username, y.Username) },
	"server":   func(x, y *row) int { return strings.Compare(x.Target, y.Target) },
	"replica":  func(x, y *row) int { return strings.Compare(x.Replica, y.Replica) },
	"connects": func(x, y *row) int { return cmp.Compare(x.Connects, y.Connects) },
	"scopes": func(x, y *row) int {
		return cmp.Or(cmp.Compare(x.Troubled, y.Troubled), cmp.Compare(x.Scopes, y.Scopes))
	},
}

// defaultSort is the column to sort by, unless the query names one.
const defaultSort = "state"

// severity is the place of a state among those to look at: lower is worse.
func severity(state string) int {
	return slices.Index([]string{clustercache.SummaryDisconnected, v1alpha1.StateUnknown, clustercache.SummaryDegraded,
		clustercache.SummaryConnecting, clustercache.SummaryConnected}, state)
}

// isProblem reports whether a person is to look at an extension in that state.
func isProblem(state string) bool { return severity(state) <= severity(clustercache.SummaryDegraded) }

// queryOf returns the query in the parameters of a request. The error names the wrong parameter.
func queryOf(values url.Values) (query, error) {
	q := query{
		state:     values.Get("state"),
		reason:    values.Get("reason"),
		troubled:  values.Get("problems") == "true",
		extension: values.Get("extension"),
		sort:      defaultSort,
		page:      1,
		size:      pageSize,
	}
	q.words = slices.Compact(slices.Sorted(slices.Values(strings.Fields(strings.ToLower(values.Get("q"))))))
	if len(values.Get("q")) > maxSearch || len(q.words) > maxWords {
		return q, errors.Errorf("q: at most %d words of %d bytes in all", maxWords, maxSearch)
	}
	if text := values.Get("sort"); text != "" {
		q.sort, q.descending = strings.CutPrefix(text, "-")
	}
	if columns[q.sort] == nil {
		return q, errors.Errorf("sort: there is no column %q", q.sort)
	}
	for name, field := range map[string]*int{"page": &q.page, "size": &q.size} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return q, errors.Errorf("%s: %q is not a positive number", name, text)
		}
		*field = n
	}
	q.size = min(q.size, maxPageSize)
	return q, nil
}

// view is what a viewer sees.
type view struct {
	Name  string    `json:"name"`
	Ready bool      `json:"ready"`
	Time  time.Time `json:"time"`
	Fleet summary   `json:"fleet"`
	// Replicas are the replicas whose extensions these are; nil if there is only this process.
	Replicas *replicas `json:"replicas,omitempty"`
	// Problems are why extensions are not connected, or degraded, the worst one first.
	Problems []problemGroup `json:"problems"`
	Page     tablePage      `json:"page"`
	// Extension is the one that the viewer has selected, nil if none.
	Extension *selected `json:"extension,omitempty"`
}

// summary counts all extensions, whatever the filter.
type summary struct {
	Extensions int            `json:"extensions"`
	States     map[string]int `json:"states"`
	Scopes     int            `json:"scopes"` // one that extensions share counts once
	Troubled   int            `json:"troubledScopes"`
}

// tablePage is a page of the table.
type tablePage struct {
	Number   int    `json:"number"`
	Pages    int    `json:"pages"`
	Matching int    `json:"matching"`
	First    int    `json:"first"` // number of the first row, from 1; 0 without rows
	Rows     []*row `json:"rows"`
}

// selected is the extension whose details the viewer sees.
type selected struct {
	Extension string `json:"extension"`
	Row       *row   `json:"row,omitempty"` // nil if the extension is not known
	// Advice is what to do about the reason of the row, and Others are further problems.
	Advice   string    `json:"advice,omitempty"`
	Others   []problem `json:"others,omitempty"`
	Timeline []entry   `json:"timeline"`
}

// viewOf returns what the query selects.
func viewOf(q query, state fleetState) (summary, []problemGroup, tablePage) {
	var groups groups
	fleet := summary{
		Extensions: len(state.rows),
		States:     map[string]int{},
		Scopes:     state.scopes,
		Troubled:   state.troubled,
	}
	var matching []*row
	for _, r := range state.rows {
		fleet.States[r.State]++
		groups.add(r)
		if r.cache == "" {
			fleet.Scopes += r.Scopes
			fleet.Troubled += r.Troubled
		}
		if matches(q, r) {
			matching = append(matching, r)
		}
	}
	column := columns[q.sort]
	slices.SortFunc(matching, func(x, y *row) int {
		order := column(x, y)
		if q.descending {
			order = -order
		}
		return cmp.Or(order, strings.Compare(x.Extension, y.Extension))
	})
	pages := max(1, (len(matching)+q.size-1)/q.size)
	page := tablePage{Number: min(q.page, pages), Pages: pages, Matching: len(matching), Rows: []*row{}}
	if len(matching) > 0 {
		first := (page.Number - 1) * q.size
		page.First = first + 1
		for _, r := range matching[first:min(first+q.size, len(matching))] {
			page.Rows = append(page.Rows, r.withSharers(state.sharers))
		}
	}
	return fleet, groups.sorted(), page
}

func matches(q query, r *row) bool {
	if q.state != "" && q.state != r.State || q.reason != "" && q.reason != r.Reason {
		return false
	}
	if q.troubled && !isProblem(r.State) {
		return false
	}
	return !slices.ContainsFunc(q.words, func(word string) bool { return !strings.Contains(r.search, word) })
}

// selectedOf returns the details of an extension, nil if none is selected.
func selectedOf(f *fleet, extension string) *selected {
	if extension == "" {
		return nil
	}
	timeline, r := f.timeline(keyOf(extension))
	s := &selected{Extension: extension, Row: r, Timeline: timeline}
	if r == nil {
		return s
	}
	s.Advice = advice.For(r.Reason)
	for _, p := range r.problems {
		if p.Muted || string(p.Reason) != r.Reason {
			s.Others = append(s.Others, problem{p, advice.For(string(p.Reason))})
		}
	}
	return s
}
