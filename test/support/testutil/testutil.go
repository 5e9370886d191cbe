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

// Recorder is an event handler that records a line for each event: "add a", "update a", "delete a",
// or, for an informer that missed the deletion, "delete unseen a". A Recorder is safe for
// concurrent use.
type Recorder struct {
	// Namespace, if not empty, restricts the recorded events to objects of that namespace.
	Namespace string
	// Hang, if not nil, makes each handler call wait until Hang is closed.
	Hang chan struct{}
	// KeepLast keeps the argument of the last call for Last. Otherwise the Recorder keeps no object,
	// so that tests can show that objects are freed.
	KeepLast bool
	// StoreKeys adds the key that the informer's store had to the lines of unseen deletions.
	StoreKeys bool
	// Key returns the text for an object in a line. Defaults to the object's name.
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
		if verb += " unseen"; r.StoreKeys {
			verb += " " + unseen.Key
		}
		event = unseen.Obj
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
	r.events = append(r.events, fmt.Sprintf("%s %s", verb, name))
	if r.KeepLast {
		r.last = last
	}
}

// Events returns the events since the last Reset. The result is never nil.
func (r *Recorder) Events() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.events...)
}

// Reset returns and removes all events.
func (r *Recorder) Reset() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := slices.Clone(r.events)
	r.events = nil
	return events
}

// Last returns the argument of the last recorded handler call.
func (r *Recorder) Last() any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
