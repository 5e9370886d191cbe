package clustercache

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// eventBurst is how many Events an extension may have in a row. After each eventRefill the
	// extension may have one more. The limit exists because tenants decide how often their
	// ServiceAccounts come and go.
	eventBurst  = 10
	eventRefill = time.Minute
)

// maxNote is how many bytes of text the API server accepts in an Event.
const maxNote = 1024

// recordEvents records an Event on an extension whenever the extension connects, or is not
// connected for another reason, until ctx is done. recordEvents is a consumer like any source, so a
// recorder that blocks delays no other consumer.
func (c *clusterCache) recordEvents(ctx context.Context, recorder events.EventRecorder) {
	state := func(key client.ObjectKey) (ConnectionState, bool) { return c.GetConnectionState(ctx, key) }
	w := eventWriter{state: state, recorder: recorder, records: map[client.ObjectKey]*eventRecord{}}
	c.sources.Listen(ctx, sourceAdapter{c.set}, 0, w.changed)
}

// eventWriter records Events on extensions. One goroutine uses it.
type eventWriter struct {
	state    func(client.ObjectKey) (ConnectionState, bool)
	recorder events.EventRecorder
	records  map[client.ObjectKey]*eventRecord // for the extensions that are known
}

// eventRecord has the last Event on one extension, and its limit.
type eventRecord struct {
	last  recordedEvent
	limit flowcontrol.PassiveRateLimiter
}

// changed records an Event if the extension's state differs from that of the last Event.
func (w *eventWriter) changed(object client.Object) {
	key := client.ObjectKeyFromObject(object)
	state, known := w.state(key)
	if !known {
		delete(w.records, key) // the extension is gone, or another operator's now
		return
	}
	if object.GetUID() != state.UID {
		return // the extension was created again; the new one has its own notification
	}
	record := w.records[key]
	if record == nil {
		record = &eventRecord{limit: newEventLimit()}
		w.records[key] = record
	}
	event, news := nextEvent(state, record.last)
	if !news || !record.limit.TryAccept() {
		return
	}
	record.last = event
	w.recorder.Eventf(object, nil, event.kind, event.reason, "Connect", "%s", eventNote(state))
}

// newEventLimit returns the limit of one extension's Events.
func newEventLimit() flowcontrol.PassiveRateLimiter {
	return flowcontrol.NewTokenBucketPassiveRateLimiter(float32(1/eventRefill.Seconds()), eventBurst)
}

// credentialNotUsed is the reason of the Event on an extension that is connected, but not with its
// newest credential.
const credentialNotUsed = "CredentialNotUsed"

// recordedEvent has the parts of an Event that nextEvent compares.
type recordedEvent struct {
	uid          types.UID // of the extension
	kind, reason string
	epoch        int64 // of the connection
}

// nextEvent returns the Event for the state, and whether that Event differs from the last.
func nextEvent(state ConnectionState, last recordedEvent) (recordedEvent, bool) {
	event := recordedEvent{
		uid:    state.UID,
		kind:   corev1.EventTypeWarning,
		reason: string(state.Reason),
		epoch:  state.Epoch,
	}
	switch {
	case state.Phase == PhaseConnected && state.Message != "":
		event.reason = credentialNotUsed
	case state.Phase == PhaseConnected:
		event.kind, event.reason = corev1.EventTypeNormal, string(PhaseConnected)
	case state.Reason.Pending():
		return last, false // the first connect is in progress
	}
	return event, event != last
}

// eventNote returns the text of the Event for a state.
func eventNote(state ConnectionState) string {
	note := state.Message
	if state.Phase == PhaseConnected && note == "" {
		note = "Connected as " + state.Identity.Username + " to " + state.Target
	} else if note == "" {
		note = "Not connected"
	}
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-len("...")], "") + "..."
	}
	return note
}
