package stateapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// store stores what this replica has of an extension. row is nil if it does not have it.
func (s *StateAPI) store(key client.ObjectKey, row *v1alpha1.Connection, scopes []*v1alpha1.Scope) {
	names := map[string]bool{}
	if row != nil {
		put(s.states, row)
		for _, scope := range scopes {
			names[scope.Name] = true
			s.scopes.Put(scope)
		}
	} else {
		s.states.Remove(key.Namespace, key.Name)
	}
	for name := range s.scopeNames[key] {
		if !names[name] {
			s.scopes.Remove(key.Namespace, name)
		}
	}
	if s.scopeNames[key] = names; len(names) == 0 {
		delete(s.scopeNames, key)
	}
}

// put stores a Connection.
func put(states *connectionStore, c *v1alpha1.Connection) {
	_, _ = states.Modify(c.Namespace, c.Name, func(was *v1alpha1.Connection, found bool) (*v1alpha1.Connection, bool,
		error) {
		if found && was.UID == c.UID {
			keepTransition(was.Status.Conditions, c.Status.Conditions, time.Now())
		}
		return c, true, nil // never an error
	})
}

// connectionOf returns the Connection of a state, without what changes all the time.
func connectionOf(state clustercache.ConnectionState) *v1alpha1.Connection {
	summary := state.Summary()
	c := &v1alpha1.Connection{
		ObjectMeta: metadataOf(state, state.Extension.Name),
		Status: v1alpha1.ConnectionStatus{
			State:              summary.State,
			Reason:             summary.Reason,
			Message:            summary.Message,
			Since:              timeOf(summary.Since),
			Source:             state.Source,
			Target:             state.Target,
			Epoch:              state.Epoch,
			Term:               state.Term,
			TokenExpires:       timeOf(state.TokenExpires),
			CredentialSince:    timeOf(state.CredentialSince),
			ObservedGeneration: state.ObservedGeneration,
			Scopes:             int32(len(state.Scopes)),
			SharedCache:        state.SharedCache,
			Refused:            refusedOf(state.Permissions),
			Probe:              v1alpha1.ProbeStatus{Error: connstate.ErrorText(state.Health.LastError)},
		},
	}
	if state.Identity.Username != "" {
		c.Status.Identity = &v1alpha1.Identity{
			Username: state.Identity.Username,
			UID:      state.Identity.UID,
			Groups:   state.Identity.Groups,
		}
	}
	for _, watch := range state.Watches {
		status := v1alpha1.WatchStatus{
			Name:       watch.Name,
			Selection:  selectionOf(watch.Kind, watch.Scope),
			Namespaces: watch.Scope.Namespaces.Names(),
			Dependents: watch.Dependents,
		}
		if selector := watch.Scope.Namespaces.LabelSelector(); selector != nil {
			status.NamespaceSelector = new(selector.String())
		}
		status.WhereverAllowed = watch.Scope.Namespaces != nil && status.Namespaces == nil && status.NamespaceSelector == nil
		c.Status.Watches = append(c.Status.Watches, status)
	}
	for _, scope := range state.Scopes {
		if scope.State == clustercache.StateForbidden {
			c.Status.ForbiddenScopes++
		}
	}
	for _, problem := range state.Problems {
		c.Status.Problems = append(c.Status.Problems, v1alpha1.Problem{
			Reason:  string(problem.Reason),
			Message: problem.Message,
			Since:   timeOf(problem.Since),
			Muted:   problem.Muted,
		})
	}
	c.Status.Conditions = conditionsOf(state, summary)
	return c
}

type connectionColumn = apiserver.Column[*v1alpha1.Connection]

// epochCell returns what the table has as the epoch: nothing of a replica that is not heard.
func epochCell(c *v1alpha1.Connection) any {
	if c.Status.State == v1alpha1.StateUnknown {
		return nil
	}
	return c.Status.Epoch
}

func connectionColumns() apiserver.StoreOption {
	return apiserver.Columns(
		connectionColumn{
			Name:        "Identity",
			Cell:        func(c *v1alpha1.Connection) any { return identityText(c) },
			Description: "The user of the connection or, while there is none, whom the extension names.",
		},
		connectionColumn{Name: "State", Cell: func(c *v1alpha1.Connection) any { return c.Status.State }},
		connectionColumn{Name: "Reason", Cell: func(c *v1alpha1.Connection) any { return c.Status.Reason }},
		connectionColumn{
			Name:        "Probed",
			Description: "How long ago the last probe ended.",
			Cell:        func(c *v1alpha1.Connection) any { return ageOf(c.Status.Probe.LastTime) },
		},
		connectionColumn{
			Name: "Scopes",
			Type: "integer",
			Cell: func(c *v1alpha1.Connection) any { return int64(c.Status.Scopes) },
		},
		connectionColumn{
			Name: "Forbidden",
			Type: "integer",
			Wide: true,
			Cell: func(c *v1alpha1.Connection) any { return int64(c.Status.ForbiddenScopes) },
		},
		connectionColumn{
			Name:        "Refused",
			Type:        "integer",
			Wide:        true,
			Description: "How many permissions the identity was refused in the last hour, and not granted since.",
			Cell:        func(c *v1alpha1.Connection) any { return numberOf(c.Status.Refused) },
		},
		connectionColumn{
			Name:        "Replica",
			Wide:        true,
			Description: "Which replica has the extension, or had it last.",
			Cell:        func(c *v1alpha1.Connection) any { return c.Status.Replica },
		},
		connectionColumn{
			Name:        "Shared Cache",
			Wide:        true,
			Description: "Connections with the same one have one informer for equal scopes.",
			Cell:        func(c *v1alpha1.Connection) any { return c.Status.SharedCache },
		},
		connectionColumn{Name: "Target", Wide: true, Cell: func(c *v1alpha1.Connection) any { return c.Status.Target }},
		connectionColumn{Name: "Source", Wide: true, Cell: func(c *v1alpha1.Connection) any { return c.Status.Source }},
		connectionColumn{
			Name:        "Credential Age",
			Wide:        true,
			Description: "How long the connection has used its credential.",
			Cell:        func(c *v1alpha1.Connection) any { return ageOf(c.Status.CredentialSince) },
		},
		connectionColumn{
			Name: "Epoch",
			Type: "integer",
			Wide: true,
			Cell: epochCell,
		},
		connectionColumn{Name: "Message", Wide: true, Cell: func(c *v1alpha1.Connection) any { return c.Status.Message }},
	)
}

// metadataOf returns metadata of an object about an extension.
func metadataOf(state clustercache.ConnectionState, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         state.Extension.Namespace,
		Name:              name,
		UID:               state.UID,
		CreationTimestamp: metav1.NewTime(state.Created.Truncate(time.Second)),
		Labels:            map[string]string{v1alpha1.ExtensionUIDLabel: string(state.UID)},
	}
}

// conditionsOf returns the conditions, whose times are those of the changes themselves.
func conditionsOf(state clustercache.ConnectionState, summary clustercache.Summary) []metav1.Condition {
	connected := metav1.Condition{
		Type:               v1alpha1.ConditionConnected,
		Status:             metav1.ConditionFalse,
		ObservedGeneration: state.ObservedGeneration,
		Reason:             string(state.Reason),
		Message:            state.Message,
		LastTransitionTime: metav1.NewTime(cmp.Or(state.DisconnectedSince, state.Since).Truncate(time.Second)),
	}
	healthy := metav1.Condition{
		Type:               v1alpha1.ConditionHealthy,
		Status:             metav1.ConditionFalse,
		ObservedGeneration: state.ObservedGeneration,
		Reason:             "NotConnected",
		Message:            state.Message,
		LastTransitionTime: metav1.NewTime(state.HealthSince.Truncate(time.Second)),
	}
	if state.Phase == clustercache.PhaseConnected {
		connected.Status, connected.Reason = metav1.ConditionTrue, v1alpha1.StateConnected
	}
	switch summary.State {
	case clustercache.SummaryConnected:
		healthy.Status, healthy.Reason, healthy.Message = metav1.ConditionTrue, v1alpha1.ConditionHealthy, ""
	case clustercache.SummaryDegraded:
		healthy.Reason, healthy.Message = summary.Reason, summary.Message
		healthy.LastTransitionTime = metav1.NewTime(summary.Since.Truncate(time.Second))
	}
	return []metav1.Condition{connected, healthy}
}

// keepTransition makes the time of a condition that of its last change of status: a problem that
// ends leaves no time behind.
func keepTransition(was, now []metav1.Condition, at time.Time) {
	for n := range now {
		before := meta.FindStatusCondition(was, now[n].Type)
		switch changed := &now[n].LastTransitionTime; {
		case before == nil:
		case before.Status == now[n].Status && (now[n].Type == v1alpha1.ConditionHealthy ||
			changed.Before(&before.LastTransitionTime)): // the first of several problems may end before the others
			*changed = before.LastTransitionTime
		case before.Status == now[n].Status:
		case !before.LastTransitionTime.Before(changed):
			*changed = metav1.NewTime(at.Truncate(time.Second))
		}
	}
}

// refreshProbe sets what changes all the time.
func refreshProbe(probe *v1alpha1.ProbeStatus, health clustercache.HealthCheckingState) {
	probe.LastTime, probe.LastSuccessTime = timeOf(health.LastProbeTime), timeOf(health.LastProbeSuccessTime)
	probe.Failures = int32(health.ConsecutiveFailures)
}

// scopesOf returns the Scopes of a state, without the numbers of their objects.
func scopesOf(state clustercache.ConnectionState) (scopes []*v1alpha1.Scope) {
	for _, scope := range state.Scopes {
		scopes = append(scopes, &v1alpha1.Scope{
			ObjectMeta: scopeMetadataOf(state, scope),
			Status: v1alpha1.ScopeStatus{
				Extension:      state.Extension.Name,
				Selection:      selectionOf(scope.GVK, scope.Scope),
				Representation: string(scope.Representation),
				State:          string(scope.State),
				Reason:         reasonOf(scope),
				Message:        connstate.ErrorText(scope.LastError),
				Since:          timeOf(scope.Since),
				Dependents:     scope.Dependents,
			},
		})
	}
	return scopes
}

// ageOf returns how long ago something was, as kubectl writes it; "" if it was not.
func ageOf(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return duration.HumanDuration(time.Since(t.Time))
}

type scopeColumn = apiserver.Column[*v1alpha1.Scope]

func scopeColumns() apiserver.StoreOption {
	return apiserver.Columns(
		scopeColumn{Name: "Extension", Cell: func(s *v1alpha1.Scope) any { return s.Status.Extension }},
		scopeColumn{Name: "Kind", Cell: func(s *v1alpha1.Scope) any { return s.Status.Kind }},
		scopeColumn{
			Name:        "In",
			Description: "The namespace; empty for all.",
			Cell:        func(s *v1alpha1.Scope) any { return s.Status.Selection.Namespace },
		},
		scopeColumn{Name: "State", Cell: func(s *v1alpha1.Scope) any { return s.Status.State }},
		scopeColumn{Name: "Reason", Cell: func(s *v1alpha1.Scope) any { return s.Status.Reason }},
		scopeColumn{Name: "Representation", Wide: true, Cell: func(s *v1alpha1.Scope) any { return s.Status.Representation }},
		scopeColumn{Name: "Labels", Wide: true, Cell: func(s *v1alpha1.Scope) any { return s.Status.LabelSelector }},
		scopeColumn{Name: "Message", Wide: true, Cell: func(s *v1alpha1.Scope) any { return s.Status.Message }},
	)
}

// scopeMetadataOf returns the metadata of a Scope, whose age is that of its state.
func scopeMetadataOf(state clustercache.ConnectionState, scope clustercache.ScopeState) metav1.ObjectMeta {
	metadata := metadataOf(state, scopeName(state.Extension.Name, scope))
	metadata.UID = types.UID(string(state.UID) + "/" + metadata.Name)
	metadata.CreationTimestamp = metav1.NewTime(scope.Since.Truncate(time.Second))
	return metadata
}

const (
	maxName   = 253
	shortHash = 10
)

// scopeName returns the name of a scope, which is the same in every process.
func scopeName(extension string, scope clustercache.ScopeState) string {
	return nameOfScope(extension, selectionOf(scope.GVK, scope.Scope), string(scope.Representation))
}

func nameOfScope(extension string, selection v1alpha1.Selection, representation string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{extension, selection.APIVersion, selection.Kind, selection.Namespace,
		selection.LabelSelector, selection.FieldSelector, representation}, "\x00")))
	if longest := maxName - shortHash - 1; len(extension) > longest {
		extension = strings.TrimRight(extension[:longest], "-.")
	}
	return extension + "-" + hex.EncodeToString(sum[:])[:shortHash]
}

// reasonOf returns why a scope is not synced, in one word.
func reasonOf(scope clustercache.ScopeState) string {
	switch reason := apierrors.ReasonForError(scope.LastError); {
	case scope.LastError == nil:
		return ""
	case reason != metav1.StatusReasonUnknown:
		return string(reason)
	case meta.IsNoMatchError(scope.LastError):
		return "NoMatch"
	default:
		return "Error"
	}
}

func selectionOf(gvk schema.GroupVersionKind, scope clustercache.Scope) v1alpha1.Selection {
	selection := v1alpha1.Selection{Kind: gvk.Kind, Namespace: scope.Namespace}
	selection.APIVersion, _ = gvk.ToAPIVersionAndKind()
	if scope.LabelSelector != nil {
		selection.LabelSelector = scope.LabelSelector.String()
	}
	if scope.FieldSelector != nil {
		selection.FieldSelector = scope.FieldSelector.String()
	}
	return selection
}

// timeOf returns a time as the API shows it, nil for none.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t.Truncate(time.Second)}
}

// identityText returns the user of a connection or, while there is none, whom the extension names.
func identityText(c *v1alpha1.Connection) string {
	if c.Status.Identity != nil {
		return c.Status.Identity.Username
	}
	if account, ok := strings.CutPrefix(c.Status.Source, "serviceaccount "); ok {
		if namespace, name, ok := strings.Cut(account, "/"); ok {
			return "system:serviceaccount:" + namespace + ":" + name
		}
	}
	return c.Status.Source
}
