package statuspage

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/statuspage"
)

// troubledConnections are many extensions, of which few have problems, and which do not change.
type troubledConnections struct{ *manyConnections }

func newTroubledConnections(n int) troubledConnections {
	m := newManyConnections(n)
	now := time.Now()
	ago := func(minutes int) time.Time { return now.Add(-time.Duration(minutes) * time.Minute) }
	disconnect := func(i int, reason clustercache.Reason, message string, minutes int) {
		s := &m.states[i]
		s.Phase, s.Reason, s.Message, s.Healthy = clustercache.PhaseDisconnected, reason, message, false
		s.Since, s.DisconnectedSince, s.Scopes = ago(minutes), ago(minutes), nil
	}
	for i := range m.states {
		s := &m.states[i]
		s.Scopes[1].State = clustercache.StateSynced
		problem := func(reason clustercache.ProblemReason, message string, minutes int) {
			s.Problems = append(s.Problems, clustercache.Problem{Reason: reason, Message: message, Since: ago(minutes)})
		}
		switch {
		case i%997 == 3:
			disconnect(i, clustercache.ReasonServiceAccountNotFound,
				fmt.Sprintf("serviceaccounts %q not found in namespace %s", "sa", s.Extension.Namespace), 3+i/997)
		case i%2003 == 5:
			disconnect(i, clustercache.ReasonUnreachable, "dial tcp 192.0.2.7:6443: connect: connection refused", 41)
		case i%1501 == 7:
			problem(clustercache.ProblemRequestsRefused, "may not create deployments.apps in namespace "+
				s.Extension.Namespace, 2)
		case i%701 == 9:
			problem(clustercache.ProblemScopesForbidden, "Secret in namespace "+s.Extension.Namespace+
				": secrets is forbidden: User \"system:serviceaccount:"+s.Extension.Namespace+":sa\" cannot list resource", 120)
			s.Scopes[1].State = clustercache.StateForbidden
			problem(clustercache.ProblemKindsNotServed, "Widget.example.com", 130)
		case i%3001 == 11:
			problem(clustercache.ProblemCredentialNotUsed, "connected with an earlier credential; the newest is "+
				"not used: 401", 12)
		}
	}
	return troubledConnections{m}
}

// SubscribeStates reports all once.
func (m troubledConnections) SubscribeStates(ctx context.Context, f func([]client.ObjectKey)) {
	var keys []client.ObjectKey
	for key := range m.index {
		keys = append(keys, key)
	}
	f(keys)
	<-ctx.Done()
}

// serve serves the page until end is called, at the latest when the test ends.
func serve(t *testing.T, connections clustercache.ClusterCache) (url string, end func()) {
	t.Helper()
	return servePage(t, statuspage.New(connections, statuspage.Options{}))
}

func servePage(t *testing.T, page *statuspage.Page) (url string, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- page.Start(ctx) }()
	server := httptest.NewServer(page)
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		NewWithT(t).Expect(<-done).To(Succeed())
		server.CloseClientConnections()
		server.Close()
	}
	t.Cleanup(end)
	return server.URL, end
}

// fits reports whether nothing of the page is beyond its right edge.
const fits = "document.documentElement.scrollWidth <= window.innerWidth"

// Of 10,000 extensions, the first screen has the problems, with what to do, whatever the width. A
// telephone shows each of them without a scroll to the side.
func TestProblemsFirst(t *testing.T) {
	g := NewWithT(t)
	url, _ := serve(t, newTroubledConnections(10_000))
	b := openBrowser(t)
	b.run(chromedp.Navigate(url + "/"))
	b.eventually("#live", Equal("Live"))
	b.eventually("#summary", MatchRegexp(`^▲ 16 Disconnected\s+◆ 26 Degraded\s+● 9,958 Connected\s+of 10,000 extensions`))
	b.eventually("#groups", MatchRegexp(`(?s)ServiceAccountNotFound.*Unreachable.*ScopesForbidden.*RequestsRefused.*`+
		`CredentialNotUsed`))
	g.Expect(evaluate[string](b, "document.title")).To(HavePrefix("(42) "))
	g.Expect(b.column(2)[:17]).To(Equal(append(repeat("▲ Disconnected", 16), "◆ Degraded")))
	bottom := "Math.max(...[...document.querySelectorAll('#groups li')].map((e) => e.getBoundingClientRect().bottom))"
	g.Expect(evaluate[float64](b, bottom)).To(BeNumerically("<", 700), "on the first screen")
	b.picture("problems-light.png")
	g.Expect(b.axe()).To(BeEmpty())
	b.dark(true)
	b.picture("problems-dark.png")
	b.dark(false)

	b.click("#groups li:nth-child(3) .named button")
	b.eventually("#verdict", HavePrefix("◆ Degraded: ScopesForbidden for 2h"))
	b.eventually("#advice", HavePrefix("What to do: Grant the ServiceAccount list and watch"))
	b.eventually("#others", And(HavePrefix("KindsNotServed: Widget.example.com"), ContainSubstring("Install")))
	g.Expect(evaluate[bool](b, `document.querySelector("#advice").getBoundingClientRect().top <
		document.querySelector("#facts").getBoundingClientRect().top`)).To(BeTrue())
	b.picture("problems-details.png")
	b.click("#close")
	b.click("#groups li:nth-child(2) .title button")
	b.eventually("#matching", Equal("5 extensions"))
	g.Expect(b.text("#reason")).To(ContainSubstring("Unreachable"))
	b.click("#reason")
	b.eventually("#matching", Equal("10,000 extensions"))
	b.click("#summary button:nth-child(2)")
	b.eventually("#matching", Equal("26 extensions"))
	b.click("#summary button:nth-child(2)")
	b.eventually("#matching", Equal("10,000 extensions"))

	b.resize(390, 844)
	g.Eventually(func() bool { return evaluate[bool](b, fits) }).WithTimeout(patience).Should(BeTrue())
	for _, selector := range []string{"#groups li", "#rows tr > td:nth-child(2)", "#rows tr > td:nth-child(3)",
		"#summary button"} {
		g.Expect(evaluate[bool](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].every((e) => {
			const r = e.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.width > 0; })`, selector))).
			To(BeTrue(), selector)
	}
	b.picture("problems-narrow.png")
	g.Expect(b.axe()).To(BeEmpty())
	evaluate[chromedp.Void](b, `document.querySelector("#extensions-heading").scrollIntoView()`)
	b.docsPicture("statuspage-narrow.png")
	g.Expect(b.consoleErrors()).To(BeEmpty())
}

func repeat(text string, n int) (all []string) {
	for range n {
		all = append(all, text)
	}
	return all
}

// With one extension the page is as plain as that.
func TestOneExtension(t *testing.T) {
	url, _ := serve(t, troubledConnections{newManyConnections(1)})
	b := openBrowser(t)
	b.run(chromedp.Navigate(url + "/"))
	b.eventually("#summary", MatchRegexp(`^● 1 Connected\s+of 1 extension, which read 2 scopes`))
	b.eventually("#fine", Equal("None: all extensions are connected, and get their work done."))
	b.picture("one.png")
	NewWithT(t).Expect(b.axe()).To(BeEmpty())
}

// When the operator dies, the page says so within seconds and, after 15 s, as of when it is:
// nothing stays green.
func TestOperatorDies(t *testing.T) {
	g := NewWithT(t)
	url, end := serve(t, newTroubledConnections(100))
	b := openBrowser(t)
	b.run(chromedp.Navigate(url + "/"))
	b.eventually("#live", Equal("Live"))
	color := `getComputedStyle([...document.querySelectorAll("#rows td:nth-child(2)")].at(-1)).color`
	before := evaluate[string](b, color)
	end()
	b.eventually("#live", HavePrefix("Not live: "))
	b.eventually("#live", MatchRegexp(`^Not live: this is as of \d.*, 1[5-9]s ago\.$`))
	g.Expect(evaluate[string](b, color)).NotTo(Equal(before))
	g.Expect(evaluate[int](b, `new Set([...document.querySelectorAll("#rows td:nth-child(2), #summary button")]
		.map((e) => getComputedStyle(e).color)).size`)).To(Equal(1), "nothing differs by its colour")
	g.Expect(b.column(2)).To(HaveEach(HavePrefix("was ")))
	g.Expect(evaluate[string](b, "document.title")).NotTo(HavePrefix("("))
	b.picture("gone.png")
	g.Expect(b.axe()).To(BeEmpty())
}
