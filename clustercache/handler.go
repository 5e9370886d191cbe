package clustercache

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Handler returns an HTTP handler that shows the states of all connections: a table as plain text,
// or JSON for requests that accept application/json or have the query format=json. The query
// extension=namespace/name (or extension=name) selects one extension. Only the replica that leads
// has connections. Serve the page on the manager's metrics server:
//
//	err := mgr.AddMetricsServerExtraHandler("/connections", clustercache.Handler(cc))
//
// That server authenticates requests only if metricsserver.Options has SecureServing and a
// FilterProvider, such as filters.WithAuthenticationAndAuthorization. Readers then need "get" on
// the nonResourceURL. Without a FilterProvider, anyone who reaches the port reads the page. The
// page has no secret, but it names identities, API servers and Secrets of all tenants.
func Handler(cc ClusterCache) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are allowed", http.StatusMethodNotAllowed)
			return
		}
		var states []ConnectionState
		if wanted := r.URL.Query().Get("extension"); wanted != "" {
			state, known := cc.GetConnectionState(r.Context(), parseKey(wanted))
			if !known {
				http.Error(w, "the extension is not known here", http.StatusNotFound)
				return
			}
			states = []ConnectionState{state}
		} else {
			states = cc.ListConnectionStates(r.Context())
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
			w.Header().Set("Content-Type", "application/json")
			writeJSON(untrusted.Terminal(w), states)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		writeTable(untrusted.Terminal(w), states, time.Now())
	})
}

func parseKey(text string) client.ObjectKey {
	if namespace, name, found := strings.Cut(text, "/"); found {
		return client.ObjectKey{Namespace: namespace, Name: name}
	}
	return client.ObjectKey{Name: text}
}

// writeTable writes a row for each state. An error is that of the client's connection.
func writeTable(w io.Writer, states []ConnectionState, now time.Time) {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "EXTENSION\tPHASE\tREASON\tAGE\tIDENTITY\tTARGET\tEPOCH\tWATCHES\tMESSAGE")
	for _, state := range states {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", connstate.KeyString(state.Extension), state.Phase,
			orDash(string(state.Reason)), now.Sub(state.Since).Round(time.Second), orDash(state.Identity.Username),
			orDash(state.Target), state.Epoch, len(state.Watches), oneLine(state.Message))
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

// stateJSON is the JSON form of a ConnectionState.
type stateJSON struct {
	Namespace          string      `json:"namespace,omitempty"`
	Name               string      `json:"name"`
	UID                types.UID   `json:"uid,omitempty"`
	Created            time.Time   `json:"created,omitzero"`
	ObservedGeneration int64       `json:"observedGeneration,omitempty"`
	Phase              Phase       `json:"phase"`
	Reason             Reason      `json:"reason,omitempty"`
	Message            string      `json:"message,omitempty"`
	Since              time.Time   `json:"since,omitzero"`
	DisconnectedSince  time.Time   `json:"disconnectedSince,omitzero"`
	Username           string      `json:"username,omitempty"`
	Groups             []string    `json:"groups,omitempty"`
	UserUID            types.UID   `json:"userUID,omitempty"`
	Target             string      `json:"target,omitempty"`
	Source             string      `json:"source,omitempty"`
	Epoch              int64       `json:"epoch,omitempty"`
	TokenExpires       time.Time   `json:"tokenExpires,omitzero"`
	CredentialSince    time.Time   `json:"credentialSince,omitzero"`
	LastProbe          time.Time   `json:"lastProbe,omitzero"`
	LastProbeSuccess   time.Time   `json:"lastProbeSuccess,omitzero"`
	ProbeFailures      int         `json:"probeFailures,omitempty"`
	ProbeError         string      `json:"probeError,omitempty"`
	Healthy            bool        `json:"healthy"`
	HealthSince        time.Time   `json:"healthSince,omitzero"`
	Watches            []watchJSON `json:"watches,omitempty"`
	Scopes             []scopeJSON `json:"scopes,omitempty"`
}

type watchJSON struct {
	Name       string      `json:"name"`
	Kind       string      `json:"kind,omitempty"`
	Scope      string      `json:"scope,omitempty"`
	Dependents []types.UID `json:"dependents,omitempty"`
}

type scopeJSON struct {
	Kind           string    `json:"kind"`
	Representation string    `json:"representation"`
	Scope          string    `json:"scope,omitempty"`
	State          string    `json:"state"`
	Since          time.Time `json:"since,omitzero"`
	Error          string    `json:"error,omitempty"`
	Objects        int       `json:"objects"`
	Dependents     []string  `json:"dependents,omitempty"`
}

// writeJSON writes {"connections": […]}. An error is that of the client's connection.
func writeJSON(w io.Writer, states []ConnectionState) {
	page := struct {
		Connections []stateJSON `json:"connections"`
	}{Connections: []stateJSON{}}
	for _, state := range states {
		page.Connections = append(page.Connections, jsonOf(state))
	}
	_ = json.NewEncoder(w).Encode(page)
}

func jsonOf(state ConnectionState) stateJSON {
	result := stateJSON{
		Namespace: state.Extension.Namespace, Name: state.Extension.Name, UID: state.UID, Created: state.Created,
		ObservedGeneration: state.ObservedGeneration, Phase: state.Phase, Reason: state.Reason, Message: state.Message,
		Since: state.Since, DisconnectedSince: state.DisconnectedSince, Username: state.Identity.Username,
		Groups: state.Identity.Groups, UserUID: state.Identity.UID,
		Target: state.Target,
		Source: state.Source, Epoch: state.Epoch, TokenExpires: state.TokenExpires, CredentialSince: state.CredentialSince,
		LastProbe: state.Health.LastProbeTime, LastProbeSuccess: state.Health.LastProbeSuccessTime,
		ProbeFailures: state.Health.ConsecutiveFailures, ProbeError: connstate.ErrorText(state.Health.LastError),
		Healthy: state.Healthy, HealthSince: state.HealthSince,
	}
	for _, watch := range state.Watches {
		result.Watches = append(result.Watches, watchJSON{Name: watch.Name, Kind: watch.Kind.String(),
			Scope: watch.Scope.String(), Dependents: watch.Dependents})
	}
	for _, scope := range state.Scopes {
		result.Scopes = append(result.Scopes, scopeJSON{Kind: scope.GVK.String(),
			Representation: string(scope.Representation), Scope: scope.Scope.String(), State: string(scope.State),
			Since: scope.Since, Error: connstate.ErrorText(scope.LastError), Objects: scope.Objects,
			Dependents: scope.Dependents})
	}
	return result
}
