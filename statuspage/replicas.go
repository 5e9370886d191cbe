package statuspage

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// Replicas is the view that a replica has of all replicas of its fleet. StateAPI.Replicas of
// package stateapi returns one. Its methods may be called from any goroutine.
type Replicas interface {
	// Follow calls report with all extensions and then with those of which something has changed,
	// until ctx is done. The empty key stands for what Members returns. Calls are one at a time.
	Follow(ctx context.Context, report func(extensions []client.ObjectKey))
	// Show returns what is shown of an extension, and false if it does not exist. The page changes
	// nothing of it.
	Show(extension client.ObjectKey) (*v1alpha1.Connection, []*v1alpha1.Scope, bool)
	// Ask is Show with what only the replica that has the extension knows, if that answers.
	Ask(ctx context.Context, extension client.ObjectKey) (*v1alpha1.Connection, []*v1alpha1.Scope, bool)
	// Members returns the replicas, sorted, and those that are not heard, with the time when they were
	// heard last, which is zero if they never were, or not in time, with the time when they were
	// asked. There are none while they are not known.
	Members() (replicas []string, silent map[string]time.Time)
}

// replicas is a fleet's replicas, as viewers see them.
type replicas struct {
	Names  []string        `json:"names"` // empty while they are not known
	Silent []silentReplica `json:"silent,omitempty"`
}

// silentReplica is a replica that is not heard in time.
type silentReplica struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since,omitzero"` // zero if it never was
}

// replicasOf returns the replicas, nil for a program that is none of several.
func replicasOf(source Replicas) *replicas {
	if source == nil {
		return nil
	}
	names, silent := source.Members()
	r := &replicas{Names: append([]string{}, names...)}
	for _, name := range names {
		if since, is := silent[name]; is {
			r.Silent = append(r.Silent, silentReplica{name, since.UTC().Truncate(time.Second)})
		}
	}
	return r
}

// shown is what is shown of an extension.
type shown struct {
	clustercache.ConnectionState
	summary clustercache.Summary
	fleet   *fleetExtension // nil without Options.Replicas
}

// fleetExtension is what only the view of all replicas has of an extension.
type fleetExtension struct {
	State     string   `json:"state"`
	Replica   string   `json:"replica,omitempty"`
	ClaimedBy []string `json:"claimedBy,omitempty"`
	// AllObjects is how many objects there are, nil if that is not known, and Counted whether the
	// Scopes have their numbers.
	AllObjects *int64 `json:"allObjects,omitempty"`
	Counted    bool   `json:"counted"`
}

// MarshalJSON implements json.Marshaler: the JSON of the ConnectionState, and more keys for a
// fleet.
func (s shown) MarshalJSON() ([]byte, error) {
	text, err := s.ConnectionState.MarshalJSON()
	if err != nil || s.fleet == nil {
		return text, err
	}
	more, err := json.Marshal(s.fleet)
	return append(append(text[:len(text)-1], ','), more[1:]...), err
}

// silent reports whether a replica is not heard that had the extension last, or may have it.
func (s *shown) silent() bool { return s.summary.State == v1alpha1.StateUnknown }

// replica returns which replica has the extension, or had it last; "" if none has.
func (s *shown) replica() string {
	if s.fleet == nil {
		return ""
	}
	return s.fleet.Replica
}

// own returns what this process says of an extension of its own.
func own(state clustercache.ConnectionState) shown {
	return shown{ConnectionState: state, summary: state.Summary()}
}

// ofFleet returns what is shown of an extension that any replica may have.
func ofFleet(c *v1alpha1.Connection, scopes []*v1alpha1.Scope) shown {
	s := shown{
		ConnectionState: stateOf(c),
		summary: clustercache.Summary{
			State:   c.Status.State,
			Reason:  c.Status.Reason,
			Message: c.Status.Message,
			Since:   timeOf(c.Status.Since),
		},
		fleet: &fleetExtension{
			State:      c.Status.State,
			Replica:    c.Status.Replica,
			ClaimedBy:  c.Status.ClaimedBy,
			AllObjects: c.Status.Objects,
			Counted:    true,
		},
	}
	for _, scope := range scopes {
		s.Scopes = append(s.Scopes, scopeOf(scope.Status))
		s.fleet.Counted = s.fleet.Counted && scope.Status.Objects != nil
	}
	slices.SortFunc(s.Scopes, func(x, y clustercache.ScopeState) int {
		return cmp.Or(cmp.Compare(x.GVK.String(), y.GVK.String()), cmp.Compare(x.Scope.String(), y.Scope.String()),
			cmp.Compare(x.Representation, y.Representation))
	})
	return s
}

// stateOf returns the ConnectionState that a Connection was made of, as far as it tells. Of an
// extension whose replica is silent, that is what the replica said last.
func stateOf(c *v1alpha1.Connection) clustercache.ConnectionState {
	status := &c.Status
	state := clustercache.ConnectionState{
		Extension:          client.ObjectKeyFromObject(c),
		UID:                c.UID,
		Created:            c.CreationTimestamp.Time,
		ObservedGeneration: status.ObservedGeneration,
		Phase:              clustercache.PhaseConnected,
		Since:              timeOf(status.Since),
		Target:             status.Target,
		Source:             status.Source,
		Epoch:              status.Epoch,
		Term:               status.Term,
		TokenExpires:       timeOf(status.TokenExpires),
		CredentialSince:    timeOf(status.CredentialSince),
		SharedCache:        status.SharedCache,
		Health: clustercache.HealthCheckingState{
			LastProbeTime:        timeOf(status.Probe.LastTime),
			LastProbeSuccessTime: timeOf(status.Probe.LastSuccessTime),
			ConsecutiveFailures:  int(status.Probe.Failures),
		},
		Permissions: permissionsOf(status.Permissions),
	}
	if status.Probe.Error != "" {
		state.Health.LastError = errors.New(status.Probe.Error)
	}
	if status.Identity != nil {
		state.Identity = clustercache.Identity{
			Username: status.Identity.Username,
			UID:      status.Identity.UID,
			Groups:   status.Identity.Groups,
		}
	}
	switch {
	case status.State == v1alpha1.StateConnecting:
		state.Phase, state.Reason, state.Message = clustercache.PhaseConnecting, clustercache.Reason(status.Reason),
			status.Message
	case status.State == v1alpha1.StateDisconnected, status.State == v1alpha1.StateUnknown && status.Identity == nil:
		state.Phase, state.Reason, state.Message = clustercache.PhaseDisconnected, clustercache.Reason(status.Reason),
			status.Message
		state.DisconnectedSince = state.Since
	default:
		state.Healthy = status.Probe.Error == ""
	}
	for _, problem := range status.Problems {
		p := clustercache.Problem{
			Reason:  clustercache.ProblemReason(problem.Reason),
			Message: problem.Message,
			Since:   timeOf(problem.Since),
			Muted:   problem.Muted,
		}
		if p.Reason == clustercache.ProblemCredentialNotUsed && state.Phase == clustercache.PhaseConnected {
			state.Message = p.Message
		}
		state.Problems = append(state.Problems, p)
	}
	for _, watch := range status.Watches {
		state.Watches = append(state.Watches, watchOf(watch))
	}
	return state
}

// timeOf returns a time of the API, zero for none.
func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

func watchOf(watch v1alpha1.WatchStatus) clustercache.WatchState {
	state := clustercache.WatchState{Name: watch.Name, Dependents: watch.Dependents}
	state.Kind, state.Scope = selectionOf(watch.Selection)
	switch {
	case watch.WhereverAllowed:
		state.Scope.Namespaces = scopedcache.WhereverAllowed()
	case watch.NamespaceSelector != nil:
		selector, _ := labels.Parse(*watch.NamespaceSelector) // nil, for nothing, if it is none
		state.Scope.Namespaces = scopedcache.NamespacesWithLabels(selector)
	case watch.Namespaces != nil:
		state.Scope.Namespaces = scopedcache.InNamespaces(watch.Namespaces...)
	}
	return state
}

func scopeOf(scope v1alpha1.ScopeStatus) clustercache.ScopeState {
	state := clustercache.ScopeState{
		Representation: scopedcache.Representation(scope.Representation),
		State:          scopedcache.State(scope.State),
		Since:          timeOf(scope.Since),
		Dependents:     scope.Dependents,
	}
	state.GVK, state.Scope = selectionOf(scope.Selection)
	if scope.Message != "" {
		state.LastError = errors.New(scope.Message)
	}
	if scope.Objects != nil {
		state.Objects = int(*scope.Objects)
	}
	return state
}

// selectionOf returns the kind and the part of its objects. A selector that is none is left out.
func selectionOf(selection v1alpha1.Selection) (schema.GroupVersionKind, clustercache.Scope) {
	scope := clustercache.Scope{Namespace: selection.Namespace}
	if selection.LabelSelector != "" {
		if selector, err := labels.Parse(selection.LabelSelector); err == nil {
			scope.LabelSelector = selector
		}
	}
	if selection.FieldSelector != "" {
		if selector, err := fields.ParseSelector(selection.FieldSelector); err == nil {
			scope.FieldSelector = selector
		}
	}
	return schema.FromAPIVersionAndKind(selection.APIVersion, selection.Kind), scope
}

func permissionsOf(record *v1alpha1.PermissionRecord) *clustercache.PermissionRecord {
	if record == nil {
		return nil
	}
	return &clustercache.PermissionRecord{
		Username:   record.Username,
		Source:     record.Source,
		Used:       usesOf(record.Used),
		Refused:    usesOf(record.Refused),
		Incomplete: record.Incomplete,
	}
}

func usesOf(uses []v1alpha1.PermissionUse) (list []clustercache.PermissionUse) {
	for _, use := range uses {
		list = append(list, clustercache.PermissionUse{
			Verb:           use.Verb,
			Group:          use.Group,
			Resource:       use.Resource,
			Subresource:    use.Subresource,
			NonResourceURL: use.NonResourceURL,
			Namespace:      use.Namespace,
			AnyNamespace:   use.AnyNamespace,
			Names:          use.Names,
			AnyName:        use.AnyName,
			Count:          use.Count,
			First:          timeOf(use.First),
			Last:           use.Last.Time,
		})
	}
	return list
}
