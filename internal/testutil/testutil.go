package testutil

import (
	"fmt"
	"net/http"
	"slices"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RoundTripperFunc is a function that is an http.RoundTripper.
type RoundTripperFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f RoundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// Recorder is an event handler that keeps a line for each event: "add a", "update a", "delete a",
// or, for an informer that missed the deletion, "delete unseen a". It is safe for concurrent use.
type Recorder struct {
	// Namespace restricts what is recorded, unless it is empty.
	Namespace string
	// Hang, if not nil, makes each call wait until it is closed.
	Hang chan struct{}
	// Key says how an object appears; its name unless set.
	Key func(client.Object) string

	mu     sync.Mutex
	events []string // guarded by mu
	last   any      // guarded by mu
}

var _ toolscache.ResourceEventHandler = (*Recorder)(nil)

// OnAdd implements toolscache.ResourceEventHandler.
func (r *Recorder) OnAdd(object any, _ bool) { r.record("add", object) }

// OnUpdate implements toolscache.ResourceEventHandler.
func (r *Recorder) OnUpdate(_, object any) { r.record("update", object) }

// OnDelete implements toolscache.ResourceEventHandler.
func (r *Recorder) OnDelete(object any) { r.record("delete", object) }

func (r *Recorder) record(verb string, event any) {
	if r.Hang != nil {
		<-r.Hang
	}
	last := event
	if unseen, ok := event.(toolscache.DeletedFinalStateUnknown); ok {
		verb, event = verb+" unseen", unseen.Obj
	}
	object := event.(client.Object)
	if r.Namespace != "" && object.GetNamespace() != r.Namespace {
		return
	}
	name := object.GetName()
	if r.Key != nil {
		name = r.Key(object)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events, r.last = append(r.events, fmt.Sprintf("%s %s", verb, name)), last
}

// Events returns the events since the last Reset. It is never nil.
func (r *Recorder) Events() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.events...)
}

// Reset forgets all events, and returns them.
func (r *Recorder) Reset() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := slices.Clone(r.events)
	r.events = nil
	return events
}

// Last returns what the handler was last called with.
func (r *Recorder) Last() any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
