package statuspage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/advice"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// fakeReplicas are the replicas a, b and c, whose view a test sets.
type fakeReplicas struct {
	changes chan []client.ObjectKey

	mu     sync.Mutex
	rows   map[client.ObjectKey]*v1alpha1.Connection // guarded by mu
	silent map[string]time.Time                      // guarded by mu
}

func newFakeReplicas() *fakeReplicas {
	return &fakeReplicas{changes: make(chan []client.ObjectKey), rows: map[client.ObjectKey]*v1alpha1.Connection{}}
}

func (f *fakeReplicas) Follow(ctx context.Context, report func([]client.ObjectKey)) {
	for {
		select {
		case <-ctx.Done():
			return
		case keys := <-f.changes:
			report(keys)
		}
	}
}

func (f *fakeReplicas) Show(key client.ObjectKey) (*v1alpha1.Connection, []*v1alpha1.Scope, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.rows[key]
	if c == nil {
		return nil, nil, false
	}
	if c.Status.Scopes == 0 {
		return c, nil, true
	}
	return c, []*v1alpha1.Scope{
		{Status: v1alpha1.ScopeStatus{
			Extension: key.Name,
			Selection: v1alpha1.Selection{APIVersion: "v1", Kind: "Secret", Namespace: "ns", LabelSelector: "a=b"},
			State:     "Forbidden",
			Message:   "cannot list",
		}},
		{Status: v1alpha1.ScopeStatus{
			Extension:      key.Name,
			Selection:      v1alpha1.Selection{APIVersion: "v1", Kind: "ConfigMap", FieldSelector: "metadata.name=x"},
			Representation: "Typed",
			State:          "Synced",
		}},
	}, true
}

func (f *fakeReplicas) Ask(_ context.Context, key client.ObjectKey) (*v1alpha1.Connection, []*v1alpha1.Scope, bool) {
	c, scopes, known := f.Show(key)
	if known {
		c = c.DeepCopy()
		c.Status.Objects = new(int64(7))
		c.Status.Probe.LastTime = &metav1.Time{Time: at(9)}
	}
	return c, scopes, known
}

func (f *fakeReplicas) Members() (replicas []string, silent map[string]time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return []string{"a", "b", "c"}, f.silent
}

// set sets rows, and reports them and, if they are silent, replicas.
func (f *fakeReplicas) set(silent map[string]time.Time, rows ...*v1alpha1.Connection) {
	keys := []client.ObjectKey{{}}
	f.mu.Lock()
	f.silent = silent
	for _, c := range rows {
		f.rows[client.ObjectKeyFromObject(c)] = c
		keys = append(keys, client.ObjectKeyFromObject(c))
	}
	f.mu.Unlock()
	f.changes <- keys
	f.changes <- nil // so that the former has been taken over
}

// held is a row of a replica that is heard.
func held(name, replica string) *v1alpha1.Connection {
	return &v1alpha1.Connection{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Status: v1alpha1.ConnectionStatus{
			State:    v1alpha1.StateConnected,
			Since:    &metav1.Time{Time: at(1)},
			Replica:  replica,
			Epoch:    1,
			Target:   "https://server",
			Source:   "serviceaccount ns/sa",
			Identity: &v1alpha1.Identity{Username: "system:serviceaccount:ns:sa"},
		},
	}
}

// unheard is what is shown of a row when its replica is silent.
func unheard(c *v1alpha1.Connection, second int) *v1alpha1.Connection {
	c = c.DeepCopy()
	c.Status.State, c.Status.Reason = v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent
	c.Status.Term, c.Status.Epoch = 0, 0
	c.Status.Since = &metav1.Time{Time: at(second)}
	c.Status.Message = "replica " + c.Status.Replica + " was not heard"
	return c
}

func unclaimed(name string) *v1alpha1.Connection {
	return &v1alpha1.Connection{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Status: v1alpha1.ConnectionStatus{
			State:   v1alpha1.StateDisconnected,
			Reason:  v1alpha1.ReasonNoReplica,
			Message: "no replica has it",
			Since:   &metav1.Time{Time: at(4)},
		},
	}
}

// startFleetPage starts a page over the view of a fleet. It ends when end is called.
func startFleetPage(t *testing.T, rows ...*v1alpha1.Connection) (page *Page, view *fakeReplicas, end func()) {
	t.Helper()
	view = newFakeReplicas()
	page = New(nil, Options{Replicas: view})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- page.Start(ctx) }()
	if rows != nil {
		view.set(nil, rows...)
	}
	return page, view, func() {
		cancel()
		NewWithT(t).Expect(<-done).To(Succeed())
	}
}

// The page of one replica has the extensions of all, with what is wrong first: those that no
// replica has, and those whose replica is not heard, which are never shown as connected.
func TestReplicas(t *testing.T) {
	g := NewWithT(t)
	degraded := held("degraded", "b")
	degraded.Status.State, degraded.Status.Reason, degraded.Status.Message = "Degraded", "ScopesForbidden", "cannot list"
	degraded.Status.Problems = []v1alpha1.Problem{{Reason: "ScopesForbidden", Message: "cannot list"}}
	degraded.Status.Scopes = 2
	contested := held("contested", "b")
	contested.Status.ClaimedBy = []string{"a", "b"}
	page, view, end := startFleetPage(t, held("fine", "a"), held("lost", "c"), degraded, contested, unclaimed("nowhere"))
	defer end()
	v := viewAt(t, page, "")
	g.Expect(v.Ready).To(BeTrue())
	g.Expect(v.Replicas).To(Equal(&replicas{Names: []string{"a", "b", "c"}}))
	g.Expect(names(v)).To(Equal([]string{"nowhere", "degraded", "contested", "fine", "lost"}))
	g.Expect(v.Fleet.States).To(Equal(map[string]int{"Disconnected": 1, "Degraded": 1, "Connected": 3}))
	g.Expect([]int{v.Fleet.Extensions, v.Fleet.Scopes, v.Fleet.Troubled}).To(Equal([]int{5, 2, 1}))
	g.Expect(v.Page.Rows[1].Replica).To(Equal("b"))
	g.Expect(v.Page.Rows[2].ClaimedBy).To(Equal([]string{"a", "b"}))
	g.Expect(v.Problems[0]).To(Equal(problemGroup{
		State:      "Disconnected",
		Reason:     v1alpha1.ReasonNoReplica,
		Extensions: 1,
		Latest:     at(4),
		Advice:     advice.For(v1alpha1.ReasonNoReplica),
		Named:      []string{"nowhere"},
		Message:    "no replica has it",
	}))
	g.Expect(v.Problems[0].Advice).NotTo(BeEmpty())

	view.set(map[string]time.Time{"c": at(9)}, unheard(held("lost", "c"), 9))
	v = viewAt(t, page, "")
	g.Expect(v.Replicas.Silent).To(Equal([]silentReplica{{"c", at(9)}}))
	g.Expect(names(v)).To(Equal([]string{"nowhere", "lost", "degraded", "contested", "fine"}))
	lost := v.Page.Rows[1]
	g.Expect([]string{lost.State, lost.Reason, lost.Replica}).To(Equal([]string{"Unknown", "ReplicaSilent", "c"}))
	g.Expect(lost.Since).To(Equal(at(9)), "as of then")
	g.Expect(lost.Healthy).To(BeFalse())
	g.Expect(v.Fleet.States).To(HaveKeyWithValue("Unknown", 1))
	g.Expect(v.Problems[1].State).To(Equal("Unknown"))
	g.Expect(v.Problems[1].Advice).To(Equal(advice.For(v1alpha1.ReasonReplicaSilent)))
	for parameters, want := range map[string][]string{
		"state=Unknown":    {"lost"},
		"reason=NoReplica": {"nowhere"},
		"problems=true":    {"nowhere", "lost", "degraded"},
		"sort=-replica":    {"lost", "contested", "degraded", "fine", "nowhere"},
	} {
		g.Expect(names(viewAt(t, page, parameters))).To(Equal(want), parameters)
	}
	delete(view.rows, keyOf("fine"))
	view.changes <- []client.ObjectKey{keyOf("fine")}
	view.changes <- nil
	g.Expect(viewAt(t, page, "").Fleet.Extensions).To(Equal(4))
}

// A timeline goes on when an extension moves, and when its replica is silent for a while.
func TestTimelineOfFleet(t *testing.T) {
	g := NewWithT(t)
	page, view, end := startFleetPage(t, held("red", "a"))
	defer end()
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for _, e := range viewAt(t, page, "extension=red").Extension.Timeline {
			got = append(got, fmt.Sprint(e.What, " ", e.Reason, " ", e.Message))
		}
		g.Expect(got[:len(want)]).To(Equal(want))
	}
	first := "Connected  connect 1, as system:serviceaccount:ns:sa to https://server"
	expect(first)
	view.set(nil, unheard(held("red", "a"), 5))
	view.set(nil, unheard(held("red", "a"), 5))
	expect("ReplicaSilent  replica a was not heard", first)
	view.set(nil, held("red", "a"))
	expect("ReplicaHeard  a", "ReplicaSilent  replica a was not heard", first)
	view.set(nil, unclaimed("red"))
	expect("Disconnected NoReplica no replica has it", "ReplicaHeard  a")
	view.set(nil, held("red", "b"))
	expect(first, "Moved  from a to b", "Disconnected NoReplica no replica has it")
	view.set(nil, held("red", "c"))
	expect(first, "Moved  from b to c", first)
	failing := held("red", "c")
	failing.Status.Probe.Error = "timeout"
	view.set(nil, failing)
	expect("ProbeFailed  timeout")
	view.set(nil, held("red", "c"))
	expect("ProbeSucceeded  ")
	view.set(nil, unheard(held("red", "d"), 5)) // which took it, and was silent at once
	expect("ReplicaSilent  replica d was not heard", "Moved  from c to d", "ProbeSucceeded  ")
	view.set(nil, held("red", "d"))
	expect(first, "ReplicaHeard  d", "ReplicaSilent  replica d was not heard")
	again := held("red", "d")
	again.Status.Epoch = 2
	view.set(nil, unheard(held("red", "d"), 6))
	view.set(nil, again)
	expect("Connected  connect 2, as system:serviceaccount:ns:sa to https://server",
		"Disconnected  ended and connected again", "ReplicaHeard  d", "ReplicaSilent  replica d was not heard", first)
	recreated := held("red", "d")
	recreated.UID = "another"
	view.set(nil, unheard(recreated, 7))
	view.set(nil, recreated)
	expect(first, "Recreated  another object has the name now: UID another", "ReplicaSilent  replica d was not heard")

	// No replica that is heard has it, and the one that had it is not heard.
	nowhere := unclaimed("red")
	nowhere.UID = "another"
	view.set(nil, unheard(nowhere, 8))
	view.set(nil, unheard(nowhere, 8))
	lost := "Disconnected ReplicaSilent replica  was not heard"
	expect(lost, first)
	for range 2 { // others come, and are not heard at first
		view.set(nil, nowhere)
		view.set(nil, unheard(nowhere, 8))
	}
	expect("NotConnected NoReplica no replica has it", lost, first)
	view.set(nil, recreated)
	expect(first, "NotConnected NoReplica no replica has it", lost, first)

	// One that is silent when it is seen first is connected when it is heard.
	other := func(want ...string) {
		t.Helper()
		var got []string
		for _, e := range viewAt(t, page, "extension=other").Extension.Timeline {
			got = append(got, e.What)
		}
		g.Expect(got).To(Equal(want))
	}
	view.set(nil, unheard(held("other", "a"), 5))
	other(entrySilent)
	view.set(nil, held("other", "a"))
	other(entryConnected, entryHeard, entrySilent)
}

// The text and the JSON of connections say which replica has an extension, and the JSON of one has
// what that replica answers.
func TestConnectionsOfFleet(t *testing.T) {
	g := NewWithT(t)
	rich := held("rich", "b")
	rich.Status.Scopes, rich.Status.ClaimedBy = 2, []string{"a", "b"}
	rich.Status.Watches = []v1alpha1.WatchStatus{
		{Name: "plain", Selection: v1alpha1.Selection{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "ns"}},
		{Name: "named", Namespaces: []string{"x", "y"}},
		{Name: "labelled", NamespaceSelector: new("team=a")},
		{Name: "allowed", WhereverAllowed: true},
	}
	rich.Status.Permissions = &v1alpha1.PermissionRecord{
		Username: "u",
		Used:     []v1alpha1.PermissionUse{{Verb: "get", Resource: "pods", Count: 3, Last: metav1.NewTime(at(3))}},
	}
	page, _, end := startFleetPage(t, rich, unheard(held("lost", "c"), 9), unclaimed("nowhere"))
	defer end()
	g.Expect(get(page, "/connections").Body.String()).To(And(MatchRegexp(`^EXTENSION .* TARGET +REPLICA +EPOCH `),
		MatchRegexp(`(?m)^lost +Unknown +ReplicaSilent .* c +- `), MatchRegexp(`(?m)^nowhere +Disconnected +NoReplica .* - +0 `),
		MatchRegexp(`(?s)lost .*nowhere .*rich `)))
	var one struct {
		Connections []struct {
			Name, State, Phase, Replica, LastProbe string
			ClaimedBy                              []string
			AllObjects                             int
			Counted                                bool
			Scopes                                 []struct{ Kind, Scope, State, Error string }
			Watches                                []struct{ Name, Kind, Scope string }
			Permissions                            struct{ Used []struct{ Verb string } }
		}
	}
	ask := func(name string) {
		t.Helper()
		answer := get(page, "/connections?format=json&extension="+url.QueryEscape(name))
		g.Expect(json.Unmarshal(answer.Body.Bytes(), &one)).To(Succeed(), "%s", answer.Body)
		g.Expect(one.Connections).To(HaveLen(1))
	}
	ask("rich")
	c := one.Connections[0]
	g.Expect([]string{c.Name, c.State, c.Phase, c.Replica, c.LastProbe}).To(Equal([]string{"rich", "Connected",
		"Connected", "b", at(9).Format(time.RFC3339)}))
	g.Expect(c.ClaimedBy).To(Equal([]string{"a", "b"}))
	g.Expect(c.AllObjects).To(Equal(7))
	g.Expect(c.Counted).To(BeFalse(), "the numbers of scopes are not known")
	g.Expect(fmt.Sprint(c.Scopes)).To(Equal("[{/v1, Kind=ConfigMap fields metadata.name=x Synced } " +
		"{/v1, Kind=Secret namespace ns, labels a=b Forbidden cannot list}]"))
	g.Expect(fmt.Sprint(c.Watches)).To(Equal("[{plain apps/v1, Kind=Deployment namespace ns} " +
		"{named /, Kind= namespaces x, y} {labelled /, Kind= namespaces with the labels team=a} " +
		"{allowed /, Kind= namespaces wherever allowed}]"))
	g.Expect(c.Permissions.Used[0].Verb).To(Equal("get"))
	ask("lost")
	g.Expect(one.Connections[0].State).To(Equal("Unknown"))
	g.Expect(get(page, "/connections?extension=none").Code).To(Equal(404))
	var all struct{ Connections []any }
	g.Expect(json.Unmarshal(get(page, "/connections?format=json").Body.Bytes(), &all)).To(Succeed())
	g.Expect(all.Connections).To(HaveLen(3))
}

// What is shown of a Connection is what it was made of.
func TestStateOf(t *testing.T) {
	g := NewWithT(t)
	c := held("red", "a")
	c.Status.TokenExpires, c.Status.CredentialSince = &metav1.Time{Time: at(60)}, &metav1.Time{Time: at(1)}
	want := connected(func(s *clustercache.ConnectionState) {
		s.UID, s.HealthSince, s.Scopes, s.TokenExpires = "uid-red", time.Time{}, nil, at(60)
	})
	g.Expect(stateOf(c)).To(Equal(want))
	c.Status.State = v1alpha1.StateDegraded
	c.Status.Problems = []v1alpha1.Problem{{Reason: "CredentialNotUsed", Message: "401", Since: &metav1.Time{Time: at(2)}}}
	state := stateOf(c)
	g.Expect(state.Message).To(Equal("401"))
	g.Expect(state.Summary()).To(Equal(clustercache.Summary{
		State:   "Degraded",
		Reason:  "CredentialNotUsed",
		Message: "401",
		Since:   at(2),
	}))
	c = held("red", "a")
	c.Status.Identity = nil
	for name, phase := range map[string]clustercache.Phase{"Connecting": clustercache.PhaseConnecting,
		"Disconnected": clustercache.PhaseDisconnected, "Unknown": clustercache.PhaseDisconnected} {
		c.Status.State, c.Status.Reason = name, string(clustercache.ReasonNotStarted)
		g.Expect(stateOf(c).Phase).To(Equal(phase), name)
		g.Expect(stateOf(c).Healthy).To(BeFalse(), name)
	}
	g.Expect(scopeOf(v1alpha1.ScopeStatus{
		Selection: v1alpha1.Selection{APIVersion: "v1", Kind: "Pod", LabelSelector: "(", FieldSelector: "("},
		State:     "Synced",
		Objects:   new(int64(3)),
	})).To(Equal(clustercache.ScopeState{
		GVK:     corev1.SchemeGroupVersion.WithKind("Pod"),
		State:   scopedcache.StateSynced,
		Objects: 3,
	}), "a selector that is none is left out")
}

// The replicas are not known at first.
func TestReplicasAtFirst(t *testing.T) {
	page, view, end := startFleetPage(t)
	defer end()
	NewWithT(t).Expect(viewAt(t, page, "").Ready).To(BeFalse())
	view.set(nil)
	NewWithT(t).Expect(viewAt(t, page, "").Ready).To(BeTrue())
}

// BenchmarkFleet has 10,000 extensions: of this process, and of three replicas. "view" is one view
// as JSON, "change" takes a change of one extension over, and "begin" takes all over.
func BenchmarkFleet(b *testing.B) {
	const n = 10_000
	replicas := newFakeReplicas()
	connections := &fakeCache{states: map[client.ObjectKey]clustercache.ConnectionState{}}
	var keys []client.ObjectKey
	for i := range n {
		name := fmt.Sprintf("extension-%05d", i)
		c := held(name, string("abc"[i%3]))
		c.Status.Scopes = 2
		keys = append(keys, keyOf(name))
		replicas.rows[keyOf(name)] = c
		connections.states[keyOf(name)] = named(name, connected(func(s *clustercache.ConnectionState) {
			s.Scopes = append(s.Scopes, scope("Secret", clustercache.StateForbidden, "cannot list"))
		}))
	}
	for name, page := range map[string]*Page{"own": New(connections, Options{}),
		"replicas": New(nil, Options{Replicas: replicas})} {
		take := func(keys []client.ObjectKey) {
			page.fleet.update(keys, func(key client.ObjectKey) (shown, bool) { return page.source.get(b.Context(), key) }, t0)
		}
		b.Run(name+"/begin", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				take(keys)
			}
		})
		b.Run(name+"/change", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				take(keys[:1])
			}
		})
		b.Run(name+"/view", func(b *testing.B) {
			q, err := queryOf(url.Values{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				v, _ := page.view(q)
				if _, err := json.Marshal(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
