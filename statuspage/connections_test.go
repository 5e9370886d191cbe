package statuspage

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

var redState = clustercache.ConnectionState{
	Extension: client.ObjectKey{Namespace: "ns", Name: "red"},
	Phase:     clustercache.PhaseDisconnected,
	Reason:    clustercache.ReasonUnreachable,
	Since:     time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	Message:   "first line\n\tsecond <line>",
	Identity:  clustercache.Identity{Username: "system:serviceaccount:ns:sa"},
	Target:    "https://server",
	Epoch:     2,
	Watches:   []clustercache.WatchState{{Name: "w"}},
}

// The states of all connections, or of one, are served as a table and as JSON.
func TestConnections(t *testing.T) {
	g := NewWithT(t)
	blue := clustercache.ConnectionState{Extension: client.ObjectKey{Name: "blue"}, Phase: clustercache.PhaseConnected}
	yellow := blue
	yellow.Extension.Name = "yellow"
	yellow.Problems = []clustercache.Problem{{Reason: clustercache.ProblemScopesForbidden, Message: "cannot list"}}
	page, _, end := startPage(t, blue, redState, yellow)
	defer end()
	ask := func(query, accept string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodGet, "/status/connections"+query, nil)
		req.Header.Set("Accept", accept)
		answer := httptest.NewRecorder()
		page.ServeHTTP(answer, req)
		return answer
	}
	table := ask("", "*/*")
	g.Expect(table.Code).To(Equal(http.StatusOK))
	g.Expect(table.Header().Get("Content-Type")).To(HavePrefix("text/plain"))
	g.Expect(table.Header().Get("X-Content-Type-Options")).To(Equal("nosniff"))
	g.Expect(table.Body.String()).To(And(MatchRegexp(`^EXTENSION `), MatchRegexp(`(?m)^blue +Connected +- `),
		MatchRegexp(`(?m)^ns/red +Disconnected +Unreachable +\S+ +system:serviceaccount:ns:sa +https://server +2 +1 +`+
			`first line second <line>$`),
		MatchRegexp(`(?m)^yellow +Degraded +ScopesForbidden .* cannot list$`)))
	for _, answer := range []*httptest.ResponseRecorder{ask("", "application/json"), ask("?format=json", "*/*")} {
		g.Expect(answer.Header().Get("Content-Type")).To(Equal("application/json"))
		var shown struct{ Connections []map[string]any }
		g.Expect(json.Unmarshal(answer.Body.Bytes(), &shown)).To(Succeed())
		g.Expect(shown.Connections).To(ConsistOf(HaveKeyWithValue("name", "blue"), HaveKeyWithValue("name", "red"),
			HaveKeyWithValue("name", "yellow")))
	}
	one := ask("?extension=ns/red", "application/json")
	g.Expect(one.Body.String()).To(And(ContainSubstring(`"red"`), Not(ContainSubstring("blue"))))
	g.Expect(ask("?extension=blue", "").Body.String()).To(ContainSubstring("blue"))
	g.Expect(ask("?extension=green", "").Code).To(Equal(http.StatusNotFound))
	none, _, endNone := startPage(t)
	defer endNone()
	g.Expect(get(none, "/connections?format=json").Body.String()).To(MatchJSON(`{"connections": []}`))
}

// What a server states reaches the terminal of who asks with curl, and can neither steer nor
// confuse it.
func TestConnectionsAreForTerminals(t *testing.T) {
	g := NewWithT(t)
	state := redState
	state.Message, state.Identity.Username = "\x1b[31mred", "a\u202eb"
	state.Identity.Groups, state.Health.LastError = []string{"\u009b"}, errors.New("\x7f\u200b")
	page, _, end := startPage(t, state)
	defer end()
	for _, query := range []string{"", "?format=json"} {
		answer := get(page, "/connections"+query)
		g.Expect(answer.Body.String()).To(ContainSubstring("red"))
		g.Expect(answer.Body.String()).NotTo(containAny("\x1b\u202e\u009b\x7f\u200b"), query)
	}
}

// containAny matches a text that has any of the characters.
func containAny(characters string) gomegatypes.GomegaMatcher {
	return WithTransform(func(text string) bool { return strings.ContainsAny(text, characters) }, BeTrue())
}
