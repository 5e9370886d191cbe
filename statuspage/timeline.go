package statuspage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// What an entry of a timeline reports.
const (
	entryConnected    = "Connected"
	entryDisconnected = "Disconnected"
	entryNotConnected = "NotConnected" // still, for another reason
	entryRotated      = "Rotated"
	entryNotUsed      = "CredentialNotUsed"
	entryUsed         = "CredentialUsed" // again the newest
	entryRefused      = "RequestsRefused"
	entryGranted      = "RequestsGranted" // or not sent again for a while
	entryProbeFailed  = "ProbeFailed"
	entryProbeOK      = "ProbeSucceeded"
	entryScope        = "Scope"
	entryRecreated    = "Recreated"
	entryRemoved      = "Removed"
	entryMoved        = "Moved" // to another replica
	entrySilent       = "ReplicaSilent"
	entryHeard        = "ReplicaHeard"
)

const (
	// maxEntries is how many entries a timeline has at most.
	maxEntries = 64
	// maxAllEntries is how many entries all timelines have at most.
	maxAllEntries = 50_000
	// removedTime is how long the timeline of a removed extension stays.
	removedTime = time.Hour
	// maxMessage is how many bytes of text an entry has at most.
	maxMessage = 512
)

// entry is one line of a timeline.
type entry struct {
	Time    time.Time `json:"time"`
	What    string    `json:"what"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
}

// seen is what entriesBetween compares of a state.
type seen struct {
	uid             types.UID
	connected       bool
	connecting      bool // for the first time
	reason, message string
	epoch           int64
	credentialSince time.Time
	tokenExpires    time.Time
	healthy         bool
	refused         string                  // what requests were refused lately
	scopes          map[string]scopeTrouble // those that do not deliver
	replica         string                  // that had it last
	silent          bool                    // and is not heard: the rest is as it said
}

// scopeTrouble is why a scope delivers nothing.
type scopeTrouble struct {
	state, message string
}

// seenOf returns what entriesBetween compares of a state. old is that of the state before, nil if
// the extension was not known. A scope that syncs again still counts as one that does not deliver.
func seenOf(old *seen, state clustercache.ConnectionState) seen {
	s := seen{
		uid:             state.UID,
		connected:       state.Phase == clustercache.PhaseConnected,
		reason:          string(state.Reason),
		connecting:      state.Starting(),
		message:         cut(state.Message),
		epoch:           state.Epoch,
		credentialSince: state.CredentialSince,
		tokenExpires:    state.TokenExpires,
		healthy:         state.Healthy,
	}
	for _, problem := range state.Problems {
		if problem.Reason == clustercache.ProblemRequestsRefused {
			s.refused = cut(problem.Message)
		}
	}
	for _, scope := range state.Scopes {
		name, trouble := scopeName(scope), scopeTrouble{}
		switch {
		case isTrouble(scope):
			trouble = scopeTrouble{state: string(scope.State), message: cut(connstate.ErrorText(scope.LastError))}
		case scope.State == clustercache.StateSyncing && old != nil && old.epoch == state.Epoch:
			trouble = old.scopes[name]
		}
		if trouble.state == "" {
			continue
		}
		if s.scopes == nil {
			s.scopes = map[string]scopeTrouble{}
		}
		s.scopes[name] = trouble
	}
	return s
}

// isTrouble reports whether a scope delivers nothing, or nothing new.
func isTrouble(scope clustercache.ScopeState) bool {
	return scope.State != clustercache.StateSynced && scope.State != clustercache.StateSyncing
}

func scopeName(scope clustercache.ScopeState) string {
	return fmt.Sprintf("%s in %s (%s)", scope.GVK.GroupKind(), scope.Scope, scope.Representation)
}

// cut returns the text without what is beyond maxMessage.
func cut(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-len("…")], "") + "…"
}

// entriesBetween returns the entries for what has changed from old, which is nil for an extension
// that was not known, to next, which is the seen of state.
func entriesBetween(old *seen, next seen, state clustercache.ConnectionState, now time.Time) []entry {
	var entries []entry
	add := func(at time.Time, what, reason, message string) {
		entries = append(entries, entry{Time: at, What: what, Reason: reason, Message: message})
	}
	was := seen{connecting: true}
	if old != nil {
		was = *old
		if old.uid != next.uid {
			add(now, entryRecreated, "", "another object has the name now: UID "+string(next.uid))
			was = seen{connecting: true, epoch: was.epoch}
		}
	}
	switch {
	case next.connected && next.epoch != was.epoch:
		if was.connected {
			add(state.Since, entryDisconnected, "", "ended and connected again")
		}
		add(state.Since, entryConnected, "", fmt.Sprintf("connect %d, as %s to %s", next.epoch,
			state.Identity.Username, state.Target))
		was = seen{healthy: true}
	case next.connected:
		if !next.credentialSince.Equal(was.credentialSince) {
			add(next.credentialSince, entryRotated, "", "the connection uses another credential: "+state.Source)
		} else if !next.tokenExpires.Equal(was.tokenExpires) {
			add(now, entryRotated, "", "renewed token, valid until "+next.tokenExpires.UTC().Format(time.RFC3339))
		}
	case was.connected:
		add(state.DisconnectedSince, entryDisconnected, next.reason, next.message)
	case !next.connecting && next.reason != was.reason:
		add(now, entryNotConnected, next.reason, next.message)
	}
	if !next.connected {
		return entries
	}
	switch {
	case was.message == "" && next.message != "":
		add(now, entryNotUsed, "", next.message)
	case was.message != "" && next.message == "":
		add(now, entryUsed, "", "the newest credential is in use")
	}
	switch {
	case was.healthy && !next.healthy:
		add(cmp.Or(state.HealthSince, now), entryProbeFailed, "", cut(connstate.ErrorText(state.Health.LastError)))
	case !was.healthy && next.healthy:
		add(cmp.Or(state.HealthSince, now), entryProbeOK, "", "")
	}
	switch {
	case was.refused == "" && next.refused != "":
		add(now, entryRefused, "", next.refused)
	case was.refused != "" && next.refused == "":
		add(now, entryGranted, "", "or not sent again for ten minutes")
	}
	return append(entries, scopeEntries(was.scopes, next.scopes, state.Scopes, now)...)
}

// entriesOf returns what the next call compares, and the entries for what has changed since the
// last one, whichever replica has the extension. old is nil for an extension that was not known.
func entriesOf(old *seen, state shown, now time.Time) (seen, []entry) {
	if state.fleet == nil {
		next := seenOf(old, state.ConnectionState)
		return next, entriesBetween(old, next, state.ConnectionState, now)
	}
	var entries []entry
	if old != nil && old.uid == state.UID && old.replica != "" && state.replica() != "" {
		switch was := *old; {
		case was.replica != state.replica():
			entries = append(entries, entry{
				Time:    now,
				What:    entryMoved,
				Message: "from " + was.replica + " to " + state.replica(),
			})
			old = &seen{uid: was.uid, connecting: true} // it counts from the beginning
		case was.silent && !state.silent():
			entries = append(entries, entry{Time: now, What: entryHeard, Message: was.replica})
		}
	}
	if state.silent() && state.replica() == "" && old != nil && !old.connected && !old.silent {
		return *old, nil // no replica had it before, and none is heard that has it
	}
	if state.silent() && state.replica() != "" { // what was before is compared when it is heard: it has no epoch
		next := seen{uid: state.UID, connecting: true}
		if old != nil {
			next = *old
		}
		if !next.silent {
			entries = append(entries, entry{Time: state.summary.Since, What: entrySilent, Message: cut(state.summary.Message)})
		}
		next.replica, next.silent = state.replica(), true
		return next, entries
	}
	next := seenOf(old, state.ConnectionState)
	if next.replica = state.replica(); next.replica == "" && old != nil {
		next.replica = old.replica
	}
	return next, append(entries, entriesBetween(old, next, state.ConnectionState, now)...)
}

// scopeEntries returns the entries for scopes that stopped or began to deliver.
func scopeEntries(was, now map[string]scopeTrouble, scopes []clustercache.ScopeState, at time.Time) []entry {
	var entries []entry
	for _, scope := range scopes {
		name := scopeName(scope)
		before, after := was[name], now[name]
		switch after.state {
		case before.state:
		case "":
			entries = append(entries, entry{
				Time:    at,
				What:    entryScope,
				Reason:  string(scope.State),
				Message: name + ": delivers again",
			})
		default:
			entries = append(entries, entry{
				Time:    at,
				What:    entryScope,
				Reason:  after.state,
				Message: cut(name + ": " + after.message),
			})
		}
	}
	return entries
}

// timelines holds the newest entries of all extensions, and those of removed extensions for
// removedTime. It is not safe for concurrent use.
type timelines struct {
	byKey map[client.ObjectKey][]numbered
	count int // entries in byKey
	// order has the entries of byKey, oldest first, and some that are gone already.
	order []place
	last  uint64 // number of the newest entry
	gone  []removal
}

type numbered struct {
	number uint64
	entry
}

// place says where an entry is.
type place struct {
	key    client.ObjectKey
	number uint64
}

// removal says when an extension was removed.
type removal struct {
	key client.ObjectKey
	at  time.Time
}

// add appends entries to an extension's timeline, and removes the oldest ones beyond the bounds. An
// extension with many entries first loses its own.
func (t *timelines) add(key client.ObjectKey, entries ...entry) {
	if t.byKey == nil {
		t.byKey = map[client.ObjectKey][]numbered{}
	}
	for _, e := range entries {
		t.last++
		own := append(t.byKey[key], numbered{t.last, e})
		if len(own) > maxEntries {
			own = own[1:] // append moves to a new array from time to time
		} else {
			t.count++
		}
		t.byKey[key] = own
		t.order = append(t.order, place{key, t.last})
	}
	for ; t.count > maxAllEntries; t.order = t.order[1:] {
		if t.has(t.order[0]) {
			t.shorten(t.order[0].key)
		}
	}
	if len(t.order) > 2*maxAllEntries {
		t.order = slices.DeleteFunc(t.order, func(p place) bool { return !t.has(p) })
	}
}

// has reports whether the entry is not gone.
func (t *timelines) has(p place) bool {
	own := t.byKey[p.key]
	return len(own) > 0 && own[0].number <= p.number
}

// shorten removes the oldest entry of an extension.
func (t *timelines) shorten(key client.ObjectKey) {
	t.count--
	if own := t.byKey[key]; len(own) > 1 {
		t.byKey[key] = own[1:]
	} else {
		delete(t.byKey, key)
	}
}

// removed records that the extension was removed.
func (t *timelines) removed(key client.ObjectKey, now time.Time) {
	if len(t.byKey[key]) > 0 {
		t.gone = append(t.gone, removal{key, now})
	}
}

// expire forgets the timelines of extensions that were removed long ago, and did not come back.
func (t *timelines) expire(now time.Time) {
	for len(t.gone) > 0 && now.Sub(t.gone[0].at) >= removedTime {
		key := t.gone[0].key
		t.gone = t.gone[1:]
		if own := t.byKey[key]; len(own) > 0 && own[len(own)-1].What == entryRemoved &&
			now.Sub(own[len(own)-1].Time) >= removedTime {
			t.count -= len(own)
			delete(t.byKey, key)
		}
	}
}

// of returns an extension's timeline, newest first.
func (t *timelines) of(key client.ObjectKey) []entry {
	own := t.byKey[key]
	entries := make([]entry, 0, len(own))
	for i := len(own) - 1; i >= 0; i-- {
		entries = append(entries, own[i].entry)
	}
	return entries
}
