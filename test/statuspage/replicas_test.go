package statuspage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/statuspage"
)

// replicaNames are as those of the Pods of a Deployment.
var replicaNames = []string{
	"latchkey-7d9f8b6c54-2xkzp_0b0a1f3e-6f5c-4f55-9d0e-0c4b7a3d2e11",
	"latchkey-7d9f8b6c54-9hq4w_5c1d2e4f-7a6b-4c8d-8e9f-1a2b3c4d5e6f",
	"latchkey-7d9f8b6c54-vt7mn_9e8d7c6b-5a4f-4e3d-9c2b-1a0f9e8d7c6b",
}

// manyReplicas is the view of a fleet of three replicas.
type manyReplicas struct {
	changes chan []client.ObjectKey

	mu     sync.Mutex
	rows   map[client.ObjectKey]*v1alpha1.Connection // guarded by mu
	silent map[string]time.Time                      // guarded by mu
}

func newManyReplicas(n int) *manyReplicas {
	m := &manyReplicas{
		changes: make(chan []client.ObjectKey),
		rows:    map[client.ObjectKey]*v1alpha1.Connection{},
		silent:  map[string]time.Time{},
	}
	began := &metav1.Time{Time: time.Now().Add(-time.Hour)}
	for i := range n {
		c := &v1alpha1.Connection{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: fmt.Sprintf("team-%03d", i%200),
				Name:      fmt.Sprintf("extension-%05d", i),
				UID:       types.UID(fmt.Sprint(i)),
			},
			Status: v1alpha1.ConnectionStatus{
				State:   v1alpha1.StateConnected,
				Since:   began,
				Replica: replicaNames[i%3],
				Target:  "https://server.example.com",
				Epoch:   1,
				Scopes:  2,
			},
		}
		c.Status.Identity = &v1alpha1.Identity{Username: "system:serviceaccount:" + c.Namespace + ":sa"}
		switch {
		case i%1501 == 7:
			c.Status.State, c.Status.Reason, c.Status.Message = v1alpha1.StateDisconnected, v1alpha1.ReasonNoReplica,
				"no replica has it"
			c.Status.Since = &metav1.Time{Time: time.Now().Add(-90 * time.Second)}
			c.Status.Identity, c.Status.Replica, c.Status.Target, c.Status.Epoch, c.Status.Scopes = nil, "", "", 0, 0
		case i%2003 == 8:
			c.Status.ClaimedBy = []string{replicaNames[0], c.Status.Replica}
		case i%701 == 9:
			c.Status.State, c.Status.Reason, c.Status.Message = v1alpha1.StateDegraded, "ScopesForbidden",
				"Secret in namespace "+c.Namespace+": secrets is forbidden"
			c.Status.Problems = []v1alpha1.Problem{{Reason: c.Status.Reason, Message: c.Status.Message, Since: began}}
		}
		m.rows[client.ObjectKeyFromObject(c)] = c
	}
	return m
}

// silence makes a replica silent: what it said is shown as Unknown.
func (m *manyReplicas) silence(replica string) {
	m.mu.Lock()
	keys := []client.ObjectKey{{}}
	at := time.Now().Add(-8 * time.Second)
	m.silent[replica] = at
	for key, c := range m.rows {
		c = c.DeepCopy()
		switch {
		case c.Status.Replica == replica:
			c.Status.Message = fmt.Sprintf("replica %s was not heard since %s, and this is what it said then", replica,
				at.UTC().Format(time.RFC3339))
			c.Status.Since = &metav1.Time{Time: at}
		case c.Status.Reason == v1alpha1.ReasonNoReplica:
			c.Status.Message = "no replica that is heard has it; not heard, or too late, and may have it: " + replica
		default:
			continue
		}
		c.Status.State, c.Status.Reason = v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent
		c.Status.Term, c.Status.Epoch = 0, 0
		m.rows[key] = c
		keys = append(keys, key)
	}
	m.mu.Unlock()
	m.changes <- keys
}

func (m *manyReplicas) Follow(ctx context.Context, report func([]client.ObjectKey)) {
	m.mu.Lock()
	keys := slices.Collect(maps.Keys(m.rows))
	m.mu.Unlock()
	for {
		report(keys)
		select {
		case <-ctx.Done():
			return
		case keys = <-m.changes:
		}
	}
}

func (m *manyReplicas) Show(key client.ObjectKey) (*v1alpha1.Connection, []*v1alpha1.Scope, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.rows[key]
	if c == nil || c.Status.Scopes == 0 {
		return c, nil, c != nil
	}
	scope := func(apiVersion, kind string) *v1alpha1.Scope {
		s := &v1alpha1.Scope{Status: v1alpha1.ScopeStatus{
			Extension:      key.Name,
			Selection:      v1alpha1.Selection{APIVersion: apiVersion, Kind: kind, Namespace: key.Namespace},
			Representation: "Typed",
			State:          "Synced",
			Dependents:     []string{"content"},
		}}
		if c.Status.Reason == "ScopesForbidden" && kind == "Secret" {
			s.Status.State, s.Status.Message = "Forbidden", "secrets is forbidden"
		}
		return s
	}
	return c, []*v1alpha1.Scope{scope("v1", "Secret"), scope("apps/v1", "Deployment")}, true
}

func (m *manyReplicas) Ask(_ context.Context, key client.ObjectKey) (*v1alpha1.Connection, []*v1alpha1.Scope, bool) {
	c, scopes, known := m.Show(key)
	if known && c.Status.State != v1alpha1.StateUnknown {
		c = c.DeepCopy()
		c.Status.Objects = new(int64(15))
	}
	return c, scopes, known
}

func (m *manyReplicas) Members() ([]string, map[string]time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return replicaNames, maps.Clone(m.silent)
}

// One page has the extensions of all replicas. When one is silent, its rows lose their colour, and
// say as of when they are; the header says who it is.
func TestReplicas(t *testing.T) {
	g := NewWithT(t)
	view := newManyReplicas(10_000)
	url, _ := servePage(t, statuspage.New(nil, statuspage.Options{Replicas: view}))
	b := openBrowser(t)
	b.run(chromedp.Navigate(url + "/"))
	b.eventually("#replicas", Equal("3 replicas"))
	b.eventually("#summary", MatchRegexp(`^▲ 7 Disconnected\s+◆ 15 Degraded\s+● 9,978 Connected\s+of 10,000 extensions`))
	b.eventually("#groups", MatchRegexp(`(?s)^▲ NoReplica.*7 extensions.*Leases.*◆ ScopesForbidden`))
	g.Expect(b.column(7)[7:]).To(HaveEach(BeElementOf("2xkzp", "9hq4w", "vt7mn")), "what differs of the Pods' names")
	g.Expect(evaluate[bool](b, `document.querySelector("#extensions").getBoundingClientRect().right <= innerWidth`)).To(BeTrue())
	b.picture("replicas-light.png")
	g.Expect(b.axe()).To(BeEmpty())
	b.typeInto("#q", "9hq4w")
	b.eventually("#matching", MatchRegexp("^3,3[0-9]+ extensions$"))
	b.typeInto("#q", "extension-00006")
	b.eventually("#matching", Equal("1 extension"))
	g.Expect(b.column(7)).To(Equal([]string{"2xkzp"}), "it is that one's")
	b.typeInto("#q", "extension-00008")
	g.Eventually(func() []string { return b.column(7) }).WithTimeout(patience).
		Should(Equal([]string{"2xkzp and vt7mn"}))
	b.run(chromedp.Navigate(url + "/?extension=team-008/extension-00008"))
	b.eventually("#facts", ContainSubstring("Claimed by"))
	b.eventually("#cost", Equal("2 informers with 15 objects in memory."))
	g.Expect(b.text("#scopes tbody")).To(ContainSubstring("–"), "the numbers of scopes are another replica's")
	b.picture("replicas-details.png")
	b.run(chromedp.Navigate(url + "/"))
	b.eventually("#live", Equal("Live"))

	view.silence(replicaNames[1])
	b.eventually("#replicas", MatchRegexp(`^3 replicas, of which one is not heard in time: latchkey-7d9f8b6c54-9hq4w since \d+:\d+:\d+$`))
	b.eventually("#summary", MatchRegexp(`^○ 3,3\d\d Unknown\s+◆ \d+ Degraded\s+● 6,6\d\d Connected`))
	b.eventually("#groups", MatchRegexp(`(?s)^\s*○ ReplicaSilent.*3,3\d\d extensions.*Pod.*ScopesForbidden`))
	g.Expect(b.column(2)[:8]).To(Equal(repeat("○ Unknown", 8)))
	color := `(name) => { const e = document.createElement("i"); e.className = name; document.body.append(e);
		const color = getComputedStyle(e).color; e.remove(); return color; }`
	g.Expect(evaluate[bool](b, fmt.Sprintf(`[...document.querySelectorAll("#rows tr.unknown td")].length > 100 &&
		[...document.querySelectorAll("#rows tr.unknown td")].every((e) => getComputedStyle(e).color === (%s)("faint"))`,
		color))).To(BeTrue(), "nothing of it has the colour of what is fine, or of what is not")
	b.docsPicture("statuspage-replicas.png")
	g.Expect(b.axe()).To(BeEmpty())
	b.dark(true)
	b.picture("replicas-silent-dark.png")
	b.dark(false)
	evaluate[chromedp.Void](b, `{ const s = document.querySelector("#state"); s.value = "Unknown"; s.dispatchEvent(new Event("change")); }`)
	b.eventually("#matching", MatchRegexp("^3,3[0-9]+ extensions$"))
	b.click("#rows button")
	b.eventually("#verdict", HavePrefix("○ Unknown: ReplicaSilent for "))
	b.eventually("#advice", HavePrefix("What to do: Look at the Pods of the replicas that the message names"))
	b.eventually("#facts", ContainSubstring("which is not heard in time. The rest is as it said last"))
	b.eventually("#scopes tbody", ContainSubstring("was Synced"))
	b.eventually("#cost", Equal("2 informers."))
	g.Expect(evaluate[int](b, `document.querySelectorAll("#scopes .good, #verdict.good, #facts .good").length`)).To(BeZero())
	b.eventually("#timeline", ContainSubstring("ReplicaSilent"))
	b.picture("replicas-silent-details.png")
	g.Expect(b.axe()).To(BeEmpty())
	b.click("#close")
	evaluate[chromedp.Void](b, `{ const s = document.querySelector("#state"); s.value = ""; s.dispatchEvent(new Event("change")); }`)
	b.eventually("#matching", Equal("10,000 extensions"))

	b.resize(390, 844)
	g.Eventually(func() bool { return evaluate[bool](b, fits) }).WithTimeout(patience).Should(BeTrue())
	evaluate[chromedp.Void](b, `window.scrollTo(0, 0)`)
	b.picture("replicas-narrow.png")
	g.Expect(b.axe()).To(BeEmpty())
	evaluate[chromedp.Void](b, `document.querySelector("#extensions-heading").scrollIntoView()`)
	b.picture("replicas-narrow-rows.png")
	g.Expect(b.consoleErrors()).To(BeEmpty())
}

// Without a fleet, the page says nothing of replicas.
func TestNoReplicas(t *testing.T) {
	g := NewWithT(t)
	url, _ := serve(t, newTroubledConnections(10))
	b := openBrowser(t)
	b.run(chromedp.Navigate(url + "/"))
	b.eventually("#matching", Equal("10 extensions"))
	g.Expect(b.text("body")).NotTo(Or(ContainSubstring("eplica"), ContainSubstring("Unknown")))
	g.Expect(evaluate[int](b, `[...document.querySelectorAll("#rows tr:first-child > *, #columns > *")]
		.filter((e) => e.getBoundingClientRect().width > 0).length`)).To(Equal(16))
}
