package stateapi

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// newView returns what a replica "me" knows of all.
func newView() *fleet {
	api := &StateAPI{
		version:     v1alpha1.GroupVersion,
		connections: &manyConnections{states: map[client.ObjectKey]clustercache.ConnectionState{}},
		scopeNames:  map[client.ObjectKey]map[string]bool{},
	}
	api.states, api.scopes = api.newStores(nil, nil, nil, 0)
	f := &fleet{api: api, options: FleetOptions{Identity: "me"}, merged: newMerged(api, "me")}
	f.merged.checkMembers = func(context.Context) error { return nil }
	return f
}

func claim(name, uid, state string, term int64) *v1alpha1.Connection {
	return &v1alpha1.Connection{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)},
		Status:     v1alpha1.ConnectionStatus{State: state, Term: term},
	}
}

// know says that an extension exists, and that this replica does not have it.
func (f *fleet) know(name, uid string) {
	f.update(client.ObjectKey{Name: name}, nil, nil, &clustercache.ConnectionState{},
		clustercache.NotOwnedExtension{UID: types.UID(uid)})
}

func (f *fleet) gauges() metrics.Fleet { return f.merged.gauges(time.Now()) }

// What no replica has, and what two have, is counted, with the age of the oldest. An extension that
// moves is among them for a moment.
func TestTallyAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newView()
		m := f.merged
		say := func(replica string, rows ...*v1alpha1.Connection) {
			for _, row := range rows {
				m.Changed(replica, connectionsResource, row)
			}
		}
		pass := func(seconds int) { // while both are heard
			for range seconds {
				<-time.After(time.Second)
				m.Heard("a")
				m.Heard("b")
				m.tick(time.Now())
			}
		}
		lasts := func(extensions, seconds int) metrics.Lasting {
			return metrics.Lasting{Extensions: extensions, Oldest: time.Duration(seconds) * time.Second}
		}
		m.Members([]string{"a", "b"})
		g.Expect(f.gauges().Silent).To(Equal(2), "neither was heard yet")
		pass(1)
		f.know("red", "1")
		pass(3)
		f.know("blue", "2")
		pass(2)
		now := f.gauges()
		g.Expect(now.Unclaimed).To(Equal(lasts(2, 5)))
		g.Expect([]int{now.Replicas, now.Silent, now.States["Disconnected"]}).To(Equal([]int{3, 0, 2}))
		say("a", claim("red", "1", "Connected", 1))
		g.Expect(f.gauges().Unclaimed).To(Equal(lasts(1, 2)), "that of the other one")
		say("b", claim("blue", "2", "Degraded", 1))
		now = f.gauges()
		g.Expect(now.Unclaimed).To(Equal(lasts(0, 0)))
		g.Expect(now.States).To(Equal(map[string]int{"Connected": 1, "Degraded": 1, "Connecting": 0, "Disconnected": 0,
			"Unknown": 0}))

		// One moves, and is claimed twice until the news of the one before has arrived.
		say("b", claim("red", "1", "Connected", 2))
		pass(4)
		say("b", claim("red", "1", "Degraded", 2))
		pass(1)
		g.Expect(f.gauges().Contested).To(Equal(lasts(1, 5)), "since it is, whatever changes of it")
		m.Removed("a", connectionsResource, claim("red", "1", "", 1))
		g.Expect(f.gauges().Contested).To(Equal(lasts(0, 0)))

		// What is deleted does not count. One that is created again is another one.
		m.Removed("b", connectionsResource, claim("red", "1", "", 2))
		pass(7)
		f.know("red", "3")
		pass(1)
		g.Expect(f.gauges().Unclaimed).To(Equal(lasts(1, 1)))
		f.know("red", "")
		g.Expect(f.gauges().Unclaimed).To(Equal(lasts(0, 0)))

		// A replica that is not heard has its extensions, until it is gone.
		for range 6 {
			<-time.After(time.Second)
			m.Heard("a")
			m.tick(time.Now())
		}
		now = f.gauges()
		g.Expect([]int{now.Replicas, now.Silent, now.States["Unknown"], now.Unclaimed.Extensions}).
			To(Equal([]int{3, 1, 1, 0}))
		m.Members([]string{"a"})
		g.Expect(f.gauges().Silent).To(Equal(1), "what it said is still shown")
		m.Gone("b")
		now = f.gauges()
		g.Expect([]int{now.Replicas, now.Silent, now.States["Unknown"], now.Unclaimed.Extensions}).
			To(Equal([]int{2, 0, 0, 1}))
	})
}

// The counts are those of what is shown, whatever happens.
func TestTally(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { testTally(t, seed) })
	}
}

func testTally(t *testing.T, seed uint64) {
	g := NewWithT(t)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not a secret
	f := newView()
	m := f.merged
	states := []string{"Connected", "Degraded", "Connecting", "Disconnected"}
	replicas := []string{"a", "b", "c"}
	row := func() *v1alpha1.Connection {
		return claim(fmt.Sprint("extension-", random.IntN(6)), fmt.Sprint(random.IntN(2)), states[random.IntN(4)],
			int64(random.IntN(3)))
	}
	began := map[string]map[string]time.Time{"unclaimed": {}, "contested": {}}
	for range 300 {
		replica, one := replicas[random.IntN(3)], row()
		key := client.ObjectKeyFromObject(one)
		switch random.IntN(11) {
		case 0:
			m.Replaced(replica, connectionsResource, []runtime.Object{one})
		case 1:
			m.Gone(replica)
		case 2:
			m.Removed(replica, connectionsResource, one)
		case 3:
			f.know(one.Name, "")
		case 4:
			f.know(one.Name, string(one.UID))
		case 5:
			f.update(key, one, nil, &clustercache.ConnectionState{UID: one.UID}, clustercache.NotOwnedExtension{})
		case 6:
			<-time.After(time.Duration(random.IntN(4)) * time.Second)
			m.tick(time.Now())
		case 7:
			m.Heard(replica)
		case 8:
			m.Members(replicas[random.IntN(2) : random.IntN(2)+2])
		default:
			m.Changed(replica, connectionsResource, one)
		}
		list, err := m.states.List(apiserver.Context{Context: t.Context()}, &metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		want := metrics.Fleet{States: map[string]int{"Connected": 0, "Degraded": 0, "Connecting": 0, "Disconnected": 0,
			"Unknown": 0}}
		idOf := func(c *v1alpha1.Connection) string { // while an extension is not known, claims say which one it is
			return c.Name + "/" + string(m.shown[client.ObjectKeyFromObject(c)].choice.UID)
		}
		lasting := func(name string, c *v1alpha1.Connection, is bool, to *metrics.Lasting) {
			id := idOf(c)
			if !is {
				delete(began[name], id)
				return
			}
			if began[name][id].IsZero() {
				began[name][id] = time.Now()
			}
			to.Extensions++
			to.Oldest = max(to.Oldest, time.Since(began[name][id]))
		}
		shown := map[string]bool{}
		for i := range list.Items {
			c := &list.Items[i]
			shown[idOf(c)] = true
			want.States[c.Status.State]++
			goesOn := c.Status.Replica == "" && !began["unclaimed"][idOf(c)].IsZero() // though one is not heard
			lasting("unclaimed", c, c.Status.Reason == v1alpha1.ReasonNoReplica || goesOn, &want.Unclaimed)
			lasting("contested", c, len(c.Status.ClaimedBy) > 0, &want.Contested)
		}
		for _, ids := range began {
			for id := range ids {
				if !shown[id] {
					delete(ids, id)
				}
			}
		}
		got := f.gauges()
		got.Replicas, got.Silent = 0, 0
		g.Expect(got).To(Equal(want), "seed %d", seed)
	}
}
