package stateapi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/internal/merge"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// shownAtOnce is for how many extensions others wait.
const shownAtOnce = 500

// showAll shows extensions of which the view has changed. Others may show some of them meanwhile,
// as the view has them then. scopes says that their scopes have changed, too.
func (m *merged) showAll(keys []client.ObjectKey, scopes bool) {
	for some := range slices.Chunk(keys, shownAtOnce) {
		m.mu.Lock()
		now := time.Now()
		for _, key := range some {
			m.showLocked(key, now, scopes)
		}
		m.mu.Unlock()
	}
}

// showLocked puts what is shown of an extension into the stores. scopes says that its scopes have
// changed, too.
func (m *merged) showLocked(key client.ObjectKey, now time.Time, scopes bool) {
	defer m.changes.Changed(key)
	choice, row := m.view.Show(key, now)
	before := m.shown[key]
	if choice.Kind == merge.Absent {
		m.states.Remove(key.Namespace, key.Name)
		m.showScopesLocked(key, before.scopes, nil, choice)
		delete(m.shown, key)
		m.tally.replace(key, before, shownExtension{}, now)
		return
	}
	c := m.connectionLocked(key, choice, row, now)
	next := shownExtension{choice: choice, state: c.Status.State, scopes: before.scopes}
	put(m.states, c)
	if scopes || before.choice.Kind != choice.Kind || before.choice.Replica != choice.Replica {
		next.scopes = m.showScopesLocked(key, before.scopes, m.said[choice.Replica][key], choice)
	}
	m.shown[key] = next
	m.tally.replace(key, before, next, now)
}

// showScopesLocked replaces the scopes that are shown of an extension, and returns their names.
func (m *merged) showScopesLocked(key client.ObjectKey, before map[string]bool, scopes map[string]*scopeRow,
	choice merge.Choice) (names map[string]bool) {
	for name := range before {
		if scopes[name] == nil {
			m.scopes.Remove(key.Namespace, name)
		}
	}
	for name, scope := range scopes {
		if names == nil {
			names = make(map[string]bool, len(scopes))
		}
		names[name] = true
		m.scopes.Put(shownScope(scope, choice))
	}
	return names
}

// shownScope returns what is shown of what a replica says of a scope.
func shownScope(said *scopeRow, choice merge.Choice) *v1alpha1.Scope {
	shown := copyOfScope(said)
	shown.UID = types.UID(string(choice.UID) + "/" + said.Name)
	shown.Labels = map[string]string{v1alpha1.ExtensionUIDLabel: string(choice.UID)}
	if choice.Kind == merge.Silent {
		shown.Status.State, shown.Status.Reason = v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent
	}
	return shown
}

// connectionLocked returns the Connection that is shown of a choice.
func (m *merged) connectionLocked(key client.ObjectKey, choice merge.Choice, row *v1alpha1.Connection,
	now time.Time) *v1alpha1.Connection {
	var c *v1alpha1.Connection
	switch choice.Kind {
	case merge.Held:
		c = copyOf(row)
	case merge.Silent:
		c = copyOf(row)
		text := "replica %s was not heard since %s, and this is what it said then"
		at, heard := m.view.HeardAt(choice.Replica)
		if since, doubted := m.view.DoubtedSince(choice.Replica); heard && doubted {
			at, text = since, "replica %s is heard late: it was asked at %s what it has, and may have said more since"
		}
		if at.IsZero() { // it was listed, and has said nothing since
			at = now
		}
		m.becomes(c, v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent, at,
			fmt.Sprintf(text, choice.Replica, at.UTC().Format(time.RFC3339)))
	default: // Unclaimed and Unsure
		known := m.known[key]
		c = &v1alpha1.Connection{ObjectMeta: metadataOf(clustercache.ConnectionState{
			Extension: key,
			UID:       known.UID,
			Created:   known.Created,
		}, key.Name)}
		since := now
		if last := m.shown[key].choice.Kind; last == merge.Unclaimed || last == merge.Unsure {
			since = m.sinceLocked(key, now)
		}
		if choice.Kind == merge.Unclaimed {
			m.becomes(c, v1alpha1.StateDisconnected, v1alpha1.ReasonNoReplica, since, "no replica has it")
			break
		}
		m.becomes(c, v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent, since,
			"no replica that is heard has it; "+m.unheardLocked())
	}
	if c.Status.State == v1alpha1.StateUnknown { // its replica may have shown later ones, which were not heard here
		c.Status.Term, c.Status.Epoch = 0, 0
	}
	if choice.Contested {
		c.Status.ClaimedBy = m.view.Claimants(key)
	}
	return c
}

// namedUnheard is how many replicas that are not heard are named in a message.
const namedUnheard = 3

// unheardLocked returns who may have what no replica has that is heard.
func (m *merged) unheardLocked() string {
	names, more := m.view.Unheard(), ""
	if len(names) == 0 {
		return "it is not known which other replicas there are"
	}
	if others := len(names) - namedUnheard; others > 0 {
		names, more = names[:namedUnheard], fmt.Sprintf(" and %d more", others)
	}
	return "not heard, or too late, and may have it: " + strings.Join(names, ", ") + more
}

// sinceLocked returns since when an extension is shown as it is.
func (m *merged) sinceLocked(key client.ObjectKey, now time.Time) time.Time {
	last, err := m.states.Get(apiserver.Context{Namespace: key.Namespace}, key.Name, &metav1.GetOptions{})
	if err != nil || last.Status.Since == nil {
		return now
	}
	return last.Status.Since.Time
}

// becomes sets a state that no replica vouches for.
func (*merged) becomes(c *v1alpha1.Connection, state, reason string, since time.Time, message string) {
	c.Status.State, c.Status.Reason, c.Status.Message, c.Status.Since = state, reason, message, timeOf(since)
	status := metav1.ConditionUnknown
	if state == v1alpha1.StateDisconnected {
		status = metav1.ConditionFalse
	}
	for _, kind := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionHealthy} {
		meta.RemoveStatusCondition(&c.Status.Conditions, kind)
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{
			Type:               kind,
			Status:             status,
			Reason:             reason,
			Message:            message,
			LastTransitionTime: metav1.NewTime(since.Truncate(time.Second)),
		})
	}
}
