package clustercache

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fixed is a ClusterCache with fixed states.
type fixed struct {
	ClusterCache
	states []ConnectionState
}

func (f fixed) ListConnectionStates(context.Context) []ConnectionState {
	return f.states
}
func (f fixed) GetConnectionState(_ context.Context, key client.ObjectKey) (ConnectionState, bool) {
	for _, state := range f.states {
		if state.Extension == key {
			return state, true
		}
	}
	return ConnectionState{}, false
}

// everyFieldJSON shows the state that everyField returns. A new field of ConnectionState has a
// place here.
const everyFieldJSON = `{"namespace": "ns", "name": "red", "uid": "uid", "created": "2025-12-31T23:59:00Z",
	"observedGeneration": 3, "disconnectedSince": "2026-01-01T00:05:00Z", "healthy": true,
	"healthSince": "2026-01-01T00:06:00Z", "phase": "Disconnected", "reason": "Unreachable",
	"message": "first line\n\tsecond <line>",
	"since": "2026-01-01T00:00:00Z", "username": "system:serviceaccount:ns:sa", "groups": ["g"], "userUID": "user-uid",
	"target": "https://server", "source": "serviceaccount ns/sa", "epoch": 2, "tokenExpires": "2026-01-01T00:01:00Z",
	"credentialSince": "2026-01-01T00:07:00Z",
	"lastProbe": "2026-01-01T00:02:00Z", "lastProbeSuccess": "2026-01-01T00:03:00Z", "probeFailures": 1,
	"probeError": "down",
	"watches": [{"name": "w", "kind": "latchkey.dev/v1alpha1, Kind=ClusterExtension", "scope": "namespace ns",
		"dependents": ["d"]}],
	"scopes": [{"kind": "latchkey.dev/v1alpha1, Kind=ClusterExtension", "representation": "Metadata",
		"scope": "namespace ns", "state": "Forbidden", "since": "2026-01-01T00:04:00Z", "error": "denied", "objects": 5,
		"dependents": ["w d"]}]}`

// everyField returns a state in which every field is set.
func everyField(t *testing.T) ConnectionState {
	t.Helper()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(minute int) time.Time { return now.Add(time.Duration(minute) * time.Minute) }
	state := ConnectionState{
		Extension: client.ObjectKey{Namespace: "ns", Name: "red"}, UID: "uid", Created: at(-1),
		ObservedGeneration: 3, DisconnectedSince: at(5), Healthy: true, HealthSince: at(6),
		Phase: PhaseDisconnected, Since: now, Reason: ReasonUnreachable, Message: "first line\n\tsecond <line>",
		Identity: Identity{Username: "system:serviceaccount:ns:sa", UID: "user-uid", Groups: []string{"g"}},
		Target:   "https://server", Source: "serviceaccount ns/sa", Epoch: 2, TokenExpires: at(1), CredentialSince: at(7),
		Health: HealthCheckingState{LastProbeTime: at(2), LastProbeSuccessTime: at(3), ConsecutiveFailures: 1,
			LastError: errors.New("down")},
		Watches: []WatchState{{Name: "w", Kind: ClusterExtensionGVK, Scope: Scope{Namespace: "ns"},
			Dependents: []types.UID{"d"}}},
		Scopes: []ScopeState{{GVK: ClusterExtensionGVK, State: StateForbidden, Since: at(4), Dependents: []string{"w d"},
			LastError:      errors.New("denied"),
			Representation: "Metadata", Scope: Scope{Namespace: "ns"}, Objects: 5}},
	}
	NewWithT(t).Expect(reflect.TypeOf(state).NumField()).To(Equal(20), "show a new field in stateJSON")
	for i := range reflect.TypeOf(state).NumField() {
		NewWithT(t).Expect(reflect.ValueOf(state).Field(i).IsZero()).To(BeFalse(), reflect.TypeOf(state).Field(i).Name)
	}
	return state
}

func TestHandler(t *testing.T) {
	g := NewWithT(t)
	red := everyField(t)
	blue := ConnectionState{Extension: client.ObjectKey{Name: "blue"}, Phase: PhaseConnected, Since: red.Since}
	handler := Handler(fixed{states: []ConnectionState{blue, red}})
	get := func(method, path, accept string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, path, http.NoBody)
		req.Header.Set("Accept", accept)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, req)
		return answer
	}
	table := get(http.MethodGet, "/connections", "*/*")
	g.Expect(table.Code).To(Equal(http.StatusOK))
	g.Expect(table.Header().Get("Content-Type")).To(HavePrefix("text/plain"))
	g.Expect(table.Header().Get("X-Content-Type-Options")).To(Equal("nosniff"))
	g.Expect(table.Body.String()).To(MatchRegexp(`(?s)^EXTENSION .*\nblue +Connected +- .*\n` +
		`ns/red +Disconnected +Unreachable +\S+ +system:serviceaccount:ns:sa +https://server +2 +1 +first line second <line>\n$`))

	for _, answer := range []*httptest.ResponseRecorder{get(http.MethodGet, "/connections", "application/json"),
		get(http.MethodGet, "/connections?format=json", "*/*")} {
		g.Expect(answer.Header().Get("Content-Type")).To(Equal("application/json"))
		var page struct{ Connections []map[string]any }
		g.Expect(json.Unmarshal(answer.Body.Bytes(), &page)).To(Succeed())
		g.Expect(page.Connections).To(HaveLen(2))
		g.Expect(page.Connections[0]).To(HaveKeyWithValue("name", "blue"))
		g.Expect(page.Connections[0]).NotTo(HaveKey("tokenExpires"), "a zero time is left out")
		g.Expect(json.Marshal(page.Connections[1])).To(MatchJSON(everyFieldJSON))
	}
	one := get(http.MethodGet, "/connections?extension=ns/red", "application/json")
	g.Expect(one.Body.String()).To(And(ContainSubstring(`"red"`), Not(ContainSubstring("blue"))))
	g.Expect(get(http.MethodGet, "/connections?extension=blue", "").Body.String()).To(ContainSubstring("blue"))
	g.Expect(get(http.MethodGet, "/connections?extension=green", "").Code).To(Equal(http.StatusNotFound))
	g.Expect(get(http.MethodHead, "/connections", "").Code).To(Equal(http.StatusOK))
	refused := get(http.MethodPost, "/connections", "")
	g.Expect(refused.Code).To(Equal(http.StatusMethodNotAllowed))
	g.Expect(refused.Header().Get("Allow")).To(Equal("GET, HEAD"))
	none := httptest.NewRecorder()
	Handler(fixed{}).ServeHTTP(none, httptest.NewRequest(http.MethodGet, "/?format=json", http.NoBody))
	g.Expect(none.Body.String()).To(MatchJSON(`{"connections": []}`))
}

// What a server states reaches the terminal of who asks with curl, and can neither steer nor
// confuse it.
func TestHandlerIsForTerminals(t *testing.T) {
	g := NewWithT(t)
	state := everyField(t)
	state.Message, state.Identity.Username = "\x1b[31mred", "a\u202eb"
	state.Identity.Groups, state.Health.LastError = []string{"\u009b"}, errors.New("\x7f\u200b")
	handler := Handler(fixed{states: []ConnectionState{state}})
	for _, url := range []string{"/", "/?format=json"} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, url, nil))
		g.Expect(answer.Body.String()).To(ContainSubstring("red"))
		g.Expect(answer.Body.String()).NotTo(containAny("\x1b\u202e\u009b\x7f\u200b"), url)
	}
}

// containAny matches a text that has any of the characters.
func containAny(characters string) gomegatypes.GomegaMatcher {
	return WithTransform(func(text string) bool { return strings.ContainsAny(text, characters) }, BeTrue())
}
