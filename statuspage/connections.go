package statuspage

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// serveConnections shows the states of all connections: a table as plain text, or JSON for requests
// that accept application/json or have the query format=json. The query extension=namespace/name
// (or extension=name) selects one extension.
func (p *Page) serveConnections(w http.ResponseWriter, r *http.Request) {
	states := []shown{}
	if wanted := r.URL.Query().Get("extension"); wanted != "" {
		state, known := p.source.ask(r.Context(), keyOf(wanted))
		if !known {
			http.Error(w, "the extension is not known here", http.StatusNotFound)
			return
		}
		states = append(states, state)
	} else {
		states = append(states, p.source.list(r.Context())...)
	}
	if r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		// An error is that of the client's connection.
		_ = json.NewEncoder(untrusted.Terminal(w)).Encode(map[string]any{"connections": states})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	writeTable(untrusted.Terminal(w), states, p.replicas != nil, time.Now())
}

// writeTable writes a row for each state, and in a fleet which replica has it. An error is that of
// the client's connection.
func writeTable(w io.Writer, states []shown, fleet bool, now time.Time) {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	heading := ""
	if fleet {
		heading = "REPLICA\t"
	}
	fmt.Fprintln(table, "EXTENSION\tSTATE\tREASON\tAGE\tIDENTITY\tTARGET\t"+heading+"EPOCH\tWATCHES\tMESSAGE")
	for _, state := range states {
		short, replica, epoch := state.summary, "", strconv.FormatInt(state.Epoch, 10)
		if state.silent() {
			epoch = "-"
		}
		if fleet {
			replica = orDash(state.replica()) + "\t"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s%s\t%d\t%s\n", connstate.KeyString(state.Extension), short.State,
			orDash(short.Reason), now.Sub(short.Since).Round(time.Second), orDash(state.Identity.Username),
			orDash(state.Target), replica, epoch, len(state.Watches), oneLine(short.Message))
	}
	_ = table.Flush()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// oneLine returns the text without characters that would break the table.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
