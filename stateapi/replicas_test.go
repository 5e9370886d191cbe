package stateapi

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// newReplicas returns the view of replica "self", to which nothing is connected.
func newReplicas(connections clustercache.ClusterCache) *Replicas {
	s := &StateAPI{
		connections: connections,
		version:     v1alpha1.GroupVersion,
		scopeNames:  map[client.ObjectKey]map[string]bool{},
	}
	s.states, s.scopes = s.newStores(nil, nil, nil, 0)
	s.fleet = &fleet{api: s, options: FleetOptions{Identity: "self"}, merged: newMerged(s, "self")}
	replicas, _ := s.Replicas()
	return replicas
}

// heldBy returns what a replica says of an extension.
func heldBy(name string) *v1alpha1.Connection {
	return &v1alpha1.Connection{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Status:     v1alpha1.ConnectionStatus{State: v1alpha1.StateConnected, Scopes: 1},
	}
}

// Replicas reports what changes, and knows who is silent.
func TestReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		connections := newManyConnections()
		r := newReplicas(connections)
		m := r.fleet.merged
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		var reported [][]client.ObjectKey
		go r.Follow(ctx, func(keys []client.ObjectKey) { reported = append(reported, keys) })
		go m.run(ctx)
		go m.begin(ctx)
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, keys := range reported {
				for _, key := range keys {
					got = append(got, key.Name)
				}
			}
			slices.Sort(got) // in one call, or in several
			g.Expect(slices.Compact(got)).To(Equal(want))
			reported = nil
		}
		scope := &v1alpha1.Scope{
			ObjectMeta: metav1.ObjectMeta{Name: nameOfScope("red", v1alpha1.Selection{}, ""), UID: "1"},
			Status:     v1alpha1.ScopeStatus{Extension: "red", State: "Synced"},
		}
		names, silent := r.Members()
		g.Expect(names).To(BeEmpty(), "nothing is known")
		g.Expect(silent).To(BeEmpty())
		m.Members([]string{"a", "b"})
		m.Replaced("a", connectionsResource, []runtime.Object{heldBy("red")})
		m.Replaced("a", scopesResource, []runtime.Object{scope})
		m.Heard("a")
		expect()
		_, silent = r.Members()
		g.Expect(silent).To(BeEmpty(), "b has just come")
		time.Sleep(silence + 2*time.Second) // b says nothing
		m.Heard("a")
		expect()
		_, silent = r.Members()
		g.Expect(silent).To(Equal(map[string]time.Time{"b": {}}))
		m.Replaced("b", connectionsResource, nil)
		m.Replaced("b", scopesResource, nil)
		m.Heard("b")
		expect("", "red")
		names, silent = r.Members()
		g.Expect(names).To(Equal([]string{"a", "b", "self"}))
		g.Expect(silent).To(BeEmpty())
		m.Changed("b", connectionsResource, heldBy("blue"))
		expect("blue")
		c, scopes, known := r.Show(client.ObjectKey{Name: "red"})
		g.Expect(known).To(BeTrue())
		g.Expect([]string{c.Status.State, c.Status.Replica}).To(Equal([]string{"Connected", "a"}))
		g.Expect(scopes).To(HaveLen(1))

		lastHeard := time.Now()
		for range 7 { // a is silent
			time.Sleep(time.Second)
			m.Heard("b")
		}
		expect("", "red")
		_, silent = r.Members()
		g.Expect(silent).To(HaveKey("a"))
		g.Expect(silent["a"]).To(BeTemporally("<=", lastHeard))
		c, scopes, _ = r.Show(client.ObjectKey{Name: "red"})
		g.Expect([]string{c.Status.State, c.Status.Reason}).To(Equal([]string{"Unknown", "ReplicaSilent"}))
		g.Expect(scopes).To(HaveLen(1), "what it said")
		g.Expect([]string{scopes[0].Status.State, scopes[0].Status.Reason}).To(Equal([]string{"Unknown", "ReplicaSilent"}))
		m.Heard("a")
		expect("", "red")
		m.Members([]string{"b"})
		m.Gone("a")
		expect("", "red")
		_, _, known = r.Show(client.ObjectKey{Name: "red"})
		g.Expect(known).To(BeFalse())

		// This replica has one: its own scopes have numbers.
		key := client.ObjectKey{Name: "tenant-00000"}
		state, _ := connections.GetConnectionState(ctx, key)
		r.fleet.update(key, connectionOf(state), scopesOf(state), &state, clustercache.NotOwnedExtension{})
		expect(key.Name)
		m.ownGet = func(c *v1alpha1.Connection) { c.Status.Objects = new(int64(7)) }
		c, scopes, _ = r.Ask(ctx, key)
		g.Expect(*c.Status.Objects).To(BeEquivalentTo(7))
		counts := map[string]int64{}
		for _, scope := range scopes {
			counts[scope.Status.Kind] = *scope.Status.Objects
		}
		g.Expect(counts).To(Equal(map[string]int64{"ConfigMap": 7, "Secret": 0}))
		_, scopes, _ = r.Show(key)
		g.Expect(scopes[0].Status.Objects).To(BeNil(), "those are copies")

		// Another one's are asked of that one, and are as it said last if it does not answer.
		m.get = func(_ context.Context, replica, _, _, name string, into runtime.Object) error {
			if name != "blue" || replica != "b" {
				return errors.New("no answer")
			}
			*into.(*v1alpha1.Connection) = *heldBy("blue")
			into.(*v1alpha1.Connection).Status.Objects = new(int64(3))
			return nil
		}
		c, _, _ = r.Ask(ctx, client.ObjectKey{Name: "blue"})
		g.Expect(*c.Status.Objects).To(BeEquivalentTo(3))
		m.Changed("b", connectionsResource, heldBy("green"))
		c, _, known = r.Ask(ctx, client.ObjectKey{Name: "green"})
		g.Expect(known).To(BeTrue())
		g.Expect(c.Status.Objects).To(BeNil())
		_, _, known = r.Ask(ctx, client.ObjectKey{Name: "none"})
		g.Expect(known).To(BeFalse())
		m.Changed("a", scopesResource, scope.DeepCopy()) // of an extension that no replica claims
		unclaimed := clustercache.NotOwnedExtension{UID: "uid-red"}
		r.fleet.update(client.ObjectKey{Name: "red"}, nil, nil, &clustercache.ConnectionState{}, unclaimed)
		c, scopes, _ = r.Show(client.ObjectKey{Name: "red"})
		g.Expect(c.Status.Reason).To(Equal(v1alpha1.ReasonNoReplica))
		g.Expect(scopes).To(BeEmpty())
	})
}

// Without a fleet there are no other replicas.
func TestNoReplicas(t *testing.T) {
	_, is := (&StateAPI{}).Replicas()
	NewWithT(t).Expect(is).To(BeFalse())
}

// The view begins after a while although a member was not listed.
func TestReplicasBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newReplicas(nil)
		r.fleet.merged.Members([]string{"a"})
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		go r.fleet.merged.begin(ctx)
		r.Follow(ctx, func([]client.ObjectKey) { cancel() })
		g.Expect(time.Since(begun)).To(Equal(firstView))
	})
}

// BenchmarkReplicas is a change of one of 10,000 extensions of another replica, until a follower
// has what is shown.
func BenchmarkReplicas(b *testing.B) {
	r := newReplicas(nil)
	m := r.fleet.merged
	objects := make([]runtime.Object, benchConnections)
	for i := range objects {
		objects[i] = heldBy(fmt.Sprintf("tenant-%05d", i))
	}
	m.Members([]string{"a"})
	m.Replaced("a", connectionsResource, objects)
	m.Replaced("a", scopesResource, nil)
	m.Heard("a")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m.begin(ctx)
	shown := make(chan int)
	go r.Follow(ctx, func(keys []client.ObjectKey) {
		keys = slices.DeleteFunc(keys, func(key client.ObjectKey) bool { return key.Name == "" })
		for _, key := range keys {
			if _, _, known := r.Show(key); !known {
				b.Error(key)
			}
		}
		shown <- len(keys)
	})
	<-shown
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c := heldBy(fmt.Sprintf("tenant-%05d", i%benchConnections))
		c.Status.Epoch = int64(i)
		m.Changed("a", connectionsResource, c)
		if n := <-shown; n != 1 {
			b.Fatal(n)
		}
	}
}
