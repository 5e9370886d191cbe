package clustercache

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

func TestNextEvent(t *testing.T) {
	connected := ConnectionState{UID: "a", Phase: Connected, Generation: 1}
	missing := ConnectionState{UID: "a", Phase: Disconnected, Reason: ServiceAccountNotFound, Generation: 1}
	event := func(state ConnectionState) recordedEvent { event, _ := nextEvent(state, recordedEvent{}); return event }
	with := func(state ConnectionState, f func(*ConnectionState)) ConnectionState { f(&state); return state }
	for name, tc := range map[string]struct {
		state ConnectionState
		last  recordedEvent
		want  string // kind and reason, "" for no news
	}{
		"first connect":       {connected, recordedEvent{}, "Normal Connected"},
		"still connected":     {connected, event(connected), ""},
		"connected again":     {with(connected, func(s *ConnectionState) { s.Generation = 2 }), event(connected), "Normal Connected"},
		"recreated":           {with(connected, func(s *ConnectionState) { s.UID = "b" }), event(connected), "Normal Connected"},
		"disconnected":        {missing, event(connected), "Warning ServiceAccountNotFound"},
		"still missing":       {missing, event(missing), ""},
		"another reason":      {with(missing, func(s *ConnectionState) { s.Reason = NotAllowed }), event(missing), "Warning NotAllowed"},
		"connecting":          {with(missing, func(s *ConnectionState) { s.Phase = Connecting }), event(missing), ""},
		"first one under way": {ConnectionState{Phase: Connecting, Reason: NotStarted}, recordedEvent{}, ""},
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

// The API server takes 1,024 bytes of valid text.
func TestEventNote(t *testing.T) {
	g := NewWithT(t)
	g.Expect(eventNote(ConnectionState{Phase: Connected, Identity: Identity{Username: "u"}, Target: "t"})).To(Equal("Connected as u to t"))
	g.Expect(eventNote(ConnectionState{})).To(Equal("Not connected"))
	long := eventNote(ConnectionState{Message: strings.Repeat("\u00e4", 2000)})
	g.Expect(len(long)).To(And(BeNumerically("<=", maxNote), BeNumerically(">", maxNote-4)))
	g.Expect(strings.ToValidUTF8(long, "?")).To(Equal(long))
}

// A tenant whose ServiceAccount comes and goes all the time has a few Events, and then one a minute.
func TestEventsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		limit := newEventLimit()
		accepted := 0
		for range 1000 {
			if limit.TryAccept() {
				accepted++
			}
		}
		g.Expect(accepted).To(Equal(eventBurst))
		<-time.After(3*eventRefill + time.Second)
		for range 1000 {
			if limit.TryAccept() {
				accepted++
			}
		}
		g.Expect(accepted).To(Equal(eventBurst + 3))
	})
}
