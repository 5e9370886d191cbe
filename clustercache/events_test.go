package clustercache

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

func TestNextEvent(t *testing.T) {
	connected := ConnectionState{UID: "a", Phase: PhaseConnected, Epoch: 1}
	missing := ConnectionState{UID: "a", Phase: PhaseDisconnected, Reason: ReasonServiceAccountNotFound, Epoch: 1}
	event := func(state ConnectionState) recordedEvent { event, _ := nextEvent(state, recordedEvent{}); return event }
	with := func(state ConnectionState, f func(*ConnectionState)) ConnectionState { f(&state); return state }
	for name, tc := range map[string]struct {
		state ConnectionState
		last  recordedEvent
		want  string // kind and reason, "" for no Event
	}{
		"first connect":   {connected, recordedEvent{}, "Normal Connected"},
		"still connected": {connected, event(connected), ""},
		"connected again": {with(connected, func(s *ConnectionState) { s.Epoch = 2 }), event(connected),
			"Normal Connected"},
		"recreated": {with(connected, func(s *ConnectionState) { s.UID = "b" }), event(connected),
			"Normal Connected"},
		"disconnected":  {missing, event(connected), "Warning ServiceAccountNotFound"},
		"still missing": {missing, event(missing), ""},
		"another reason": {with(missing, func(s *ConnectionState) { s.Reason = ReasonNotAllowed }), event(missing),
			"Warning NotAllowed"},
		"connecting": {with(missing, func(s *ConnectionState) { s.Phase = PhaseConnecting }), event(missing),
			""},
		"first one in progress": {ConnectionState{Phase: PhaseConnecting, Reason: ReasonNotStarted}, recordedEvent{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, news := nextEvent(tc.state, tc.last)
			if tc.want == "" {
				NewWithT(t).Expect(news).To(BeFalse())
				return
			}
			NewWithT(t).Expect(news).To(BeTrue())
			NewWithT(t).Expect(got.kind + " " + got.reason).To(Equal(tc.want))
		})
	}
}

// The API server accepts 1,024 bytes of valid text.
func TestEventNote(t *testing.T) {
	g := NewWithT(t)
	g.Expect(eventNote(ConnectionState{Phase: PhaseConnected, Identity: Identity{Username: "u"}, Target: "t"})).
		To(Equal("Connected as u to t"))
	g.Expect(eventNote(ConnectionState{})).To(Equal("Not connected"))
	long := eventNote(ConnectionState{Message: strings.Repeat("\u00e4", 2000)})
	g.Expect(len(long)).To(And(BeNumerically("<=", maxNote), BeNumerically(">", maxNote-4)))
	g.Expect(strings.ToValidUTF8(long, "?")).To(Equal(long))
}

// noted records the reasons of Events.
type noted struct{ reasons []string }

func (n *noted) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	n.reasons = append(n.reasons, reason)
}

// A tenant whose ServiceAccount is created and deleted all the time gets a few Events, and then one
// a minute. The writer forgets an extension that is gone, and records no Event for the state of
// another extension of the same name.
func TestEventsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "a"}}
		state, known := ConnectionState{UID: "a", Phase: PhaseConnected}, true
		n := &noted{}
		w := eventWriter{
			state: func(client.ObjectKey) (ConnectionState, bool) {
				return state, known
			},
			recorder: n,
			records:  map[client.ObjectKey]*eventRecord{},
		}
		flap := func() {
			for range 100 {
				state.Epoch++
				w.changed(object)
			}
		}
		flap()
		g.Expect(n.reasons).To(HaveLen(eventBurst))
		<-time.After(3*eventRefill + time.Second)
		flap()
		g.Expect(n.reasons).To(HaveLen(eventBurst + 3))
		<-time.After(eventRefill)
		state.UID = "b"
		w.changed(object)
		g.Expect(n.reasons).To(HaveLen(eventBurst+3), "the state belongs to another extension of the same name")
		known = false
		w.changed(object)
		g.Expect(w.records).To(BeEmpty())
	})
}

// Events of extensions that are ours, or were ours until now, pass. Events of other operators'
// extensions are not queued.
func TestWatchFilterPredicate(t *testing.T) {
	g := NewWithT(t)
	r := &reconciler{hasLabel: (&Options{WatchFilterValue: "ours"}).hasWatchLabel}
	ours := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{WatchLabel: "ours"}}}
	theirs := &corev1.ConfigMap{}
	p := r.watchFilterPredicate()
	g.Expect(p.Create(event.CreateEvent{Object: ours})).To(BeTrue())
	g.Expect(p.Create(event.CreateEvent{Object: theirs})).To(BeFalse())
	g.Expect(p.Generic(event.GenericEvent{Object: ours})).To(BeTrue())
	g.Expect(p.Generic(event.GenericEvent{Object: theirs})).To(BeFalse())
	g.Expect(p.Delete(event.DeleteEvent{Object: theirs})).
		To(BeTrue(), "a deletion is cheap, and may be of an extension that was ours")
	for _, tc := range []struct {
		before, after client.Object
		want          bool
	}{{ours, ours, true}, {ours, theirs, true}, {theirs, ours, true}, {theirs, theirs, false}} {
		g.Expect(p.Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after})).To(Equal(tc.want))
	}
}
