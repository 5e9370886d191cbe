package clustercache

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// ConnectionState is a snapshot of one extension's connection. ConnectionState holds no secret.
// Except for Lease, and the errors and selectors in Scopes, ConnectionState shares nothing with the
// connection. MarshalJSON has its JSON form.
type ConnectionState struct {
	// Extension is the key of the extension, and UID is the extension's UID.
	Extension client.ObjectKey `json:"-"`
	UID       types.UID        `json:"uid,omitempty"`
	// Created is the metadata.creationTimestamp of the extension.
	Created time.Time `json:"created,omitzero"`
	// ObservedGeneration is the metadata.generation of the extension that the state is based on.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase says whether there is a connection, and Since is the start of this phase.
	Phase Phase     `json:"phase"`
	Since time.Time `json:"since,omitzero"`
	// DisconnectedSince is since when there is no connection, zero while connected. A retry does not
	// change it, although a retry changes Phase and Since.
	DisconnectedSince time.Time `json:"disconnectedSince,omitzero"`
	// Reason is why there is no connection, empty while connected.
	Reason Reason `json:"reason,omitempty"`
	// Message states why there is no connection or, while connected, why the newest credential is
	// not in use. It is for people, and never contains a secret.
	Message string `json:"message,omitempty"`
	// Identity is the user as the API server stated it, or zero while not connected. With
	// credential.Impersonation the UID is that of the ServiceAccount. With a kubeconfig that
	// impersonates, the UID is not known, and the impersonator is the kubeconfig's own user.
	Identity Identity `json:"-"`
	// Target is the API server's URL, empty while unknown.
	Target string `json:"target,omitempty"`
	// Source is where the credential comes from: "serviceaccount ns/name" or "secret ns/name, key
	// k". While not connected, Source is where the credential would come from. It is empty while
	// unknown.
	Source string `json:"source,omitempty"`
	// Epoch is the number of connects so far.
	Epoch int64 `json:"epoch,omitempty"`
	// Term is how often the Lease in which this replica acts for the extension was taken before, by
	// all replicas: where they share, it grows from one to the next, and when one takes the Lease
	// again that it had lost. Zero without a Lease.
	Term int64 `json:"term,omitempty"`
	// Lease is that term, or ends before it: its Err says when this replica does not act for the
	// extension any more, which may be before the state says so. Nil without a Lease. It is the only
	// part of the state that changes, so leave it out if you compare states.
	Lease *fence.Term `json:"-"`
	// TokenExpires is when the current token expires, zero if the credential does not expire.
	TokenExpires time.Time `json:"tokenExpires,omitzero"`
	// CredentialSince is since when the connection uses its current credential: since the connect, or
	// since a rotation to another one. It is zero while not connected. A renewed token of a
	// ServiceAccount is the same credential.
	CredentialSince time.Time `json:"credentialSince,omitzero"`
	// Health has the results of the probes.
	Health HealthCheckingState `json:"-"`
	// Healthy reports whether there is a connection and its last probe succeeded. HealthSince is
	// since when Healthy is what it is.
	Healthy     bool      `json:"healthy"`
	HealthSince time.Time `json:"healthSince,omitzero"`
	// Watches are the registered watches, sorted by name, kind and scope.
	Watches []WatchState `json:"-"`
	// Problems are why work may not get done although there is a connection: one for each reason,
	// those that are not muted first, and the worst one first. Empty while not connected.
	Problems []Problem `json:"problems,omitempty"`
	// Scopes are the scopes of the connection's cache that the extension uses, sorted by kind and
	// scope. It is empty while not connected.
	Scopes []ScopeState `json:"-"`
	// SharedCache is the random name of a cache that all extensions of the identity may use, also
	// while this one is the only one or has not read yet. Those with the same SharedCache have one
	// informer for equal GVK, Representation and Scope of their Scopes, so count these once. The name
	// lasts as long as one of them is connected. SharedCache is empty if the extension has a cache of
	// its own, which it also gets by IndexField, and while not connected.
	SharedCache string `json:"sharedCache,omitempty"`
	// Permissions is the record of what the identity used and was refused; nil without
	// PermissionOptions.Record, and before the first connect.
	Permissions *PermissionRecord `json:"permissions,omitempty"`
}

// Starting reports whether the first connect of the extension has not ended yet. What was connected
// before, or was tried in vain, is not starting, whatever is tried now.
func (s *ConnectionState) Starting() bool {
	return s.Phase != PhaseConnected && s.Epoch == 0 && s.Reason.Pending()
}

// NotOwnedExtension is an extension that another replica has, or none.
type NotOwnedExtension struct {
	// UID of the extension.
	UID types.UID
	// Created is the metadata.creationTimestamp of the extension.
	Created time.Time
}

// WatchState is a snapshot of a watch with one informer. A WatchContent has one WatchState per kind
// and namespace.
type WatchState struct {
	// Name of the watch.
	Name string
	// Kind and Scope are what the informer watches.
	Kind  schema.GroupVersionKind
	Scope Scope
	// Dependents are the objects that need the watch, sorted. One of them is empty if the watch was
	// registered without a dependent.
	Dependents []types.UID
}

// connectionStateOf returns the public form of a state.
func connectionStateOf(state accessor.State) ConnectionState {
	public := ConnectionState{
		Extension:          state.Extension,
		UID:                state.UID,
		Created:            state.Created,
		ObservedGeneration: state.Generation,
		Phase:              state.Phase,
		Since:              state.Since,
		DisconnectedSince:  state.DisconnectedSince,
		Reason:             state.Reason,
		Message:            connstate.ErrorText(state.Err),
		Identity:           Identity(state.Identity),
		Target:             state.Target,
		Source:             state.Source,
		Epoch:              state.Epoch,
		Term:               state.Term,
		Lease:              state.Lease,
		TokenExpires:       state.TokenExpires,
		CredentialSince:    state.CredentialSince,
		Health:             HealthCheckingState(state.Health),
		Healthy:            state.Healthy,
		HealthSince:        state.HealthSince,
		Scopes:             state.Scopes,
		SharedCache:        state.SharedCache,
		Problems:           problemsOf(state.Problems),
		Permissions:        permissionRecordOf(state.Permissions),
	}
	for _, watch := range state.Watches {
		public.Watches = append(public.Watches, watchStateOf(watch))
	}
	return public
}

func watchStateOf(state watches.WatchState) WatchState { return WatchState(state) }

// What travels in errors and values has one type for all packages; clustercache gives it a name.
type (
	// Phase says whether an extension is connected: PhaseDisconnected, PhaseConnecting or
	// PhaseConnected.
	Phase = connstate.Phase
	// Reason is one word for why an extension is not connected, empty while connected.
	Reason = connstate.Reason
	// NotConnectedError is the error of a call for an extension that is not connected. Values are
	// shared: do not change them. The fields are
	//
	//   - Extension, a client.ObjectKey,
	//   - Reason, the Reason why it is not connected,
	//   - Since, a time.Time: since when. For ReasonStale, when the connection began. Zero if the
	//     extension is unknown.
	//   - Err, the last failure, nil if there was none.
	//
	// errors.Is and errors.Cause find ErrNotConnected. errors.Is and errors.As also find Err and
	// its causes. Error returns a text without any secret.
	NotConnectedError = connstate.NotConnectedError
	// HealthCheckingState has the results of a connection's probes.
	HealthCheckingState = healthprobe.State
	// Identity is a user as the API server reports it.
	Identity = healthprobe.Identity
	// NoTokenError is the error of a request that was not sent because there was no valid token,
	// although the extension is connected. Return the error and let your queue try again.
	NoTokenError = credential.NoTokenError
	// Scope is the part of a kind that a watch covers.
	Scope = scopedcache.Scope
	// ScopeState is a snapshot of one informer of a connection's cache.
	ScopeState = scopedcache.ScopeState
)

// States of a scope, in ScopeState and WatchError.
const (
	StateSyncing   = scopedcache.StateSyncing   // the first list is in progress
	StateSynced    = scopedcache.StateSynced    // the informer lists and watches
	StateForbidden = scopedcache.StateForbidden // the identity may not list and watch; latchkey checks again
	StateNotServed = scopedcache.StateNotServed // the API server does not serve the kind; latchkey looks for it again
	StateFailing   = scopedcache.StateFailing   // another error; reads still return the last known objects
	StateLive      = scopedcache.StateLive      // the same as Forbidden, but Gets go to the API server
	StatePartial   = scopedcache.StatePartial   // of a set of namespaces: some are Synced; the error says what is missing
	StateLeft      = scopedcache.StateLeft      // of a namespace that has left a set; only OnError receives it
)

// Phases of a connection.
const (
	PhaseDisconnected = connstate.PhaseDisconnected // there is no connection; see Reason
	PhaseConnecting   = connstate.PhaseConnecting   // a connect is in progress; Reason is why there is none yet
	PhaseConnected    = connstate.PhaseConnected    // there is a connection, and the API server reported its identity
)

// Reasons for not being connected. docs/operations.md says what to do for each.
const (
	// ReasonNotStarted: there is no result yet, the extension is unknown here, the manager has not
	// started, or this replica is not the leader.
	ReasonNotStarted = connstate.ReasonNotStarted
	// ReasonInvalidReference: the extension names no ServiceAccount or Secret, or none that can
	// exist.
	ReasonInvalidReference = connstate.ReasonInvalidReference
	// ReasonServiceAccountNotFound: the ServiceAccount does not exist, or was just recreated.
	ReasonServiceAccountNotFound = connstate.ReasonServiceAccountNotFound
	// ReasonTokenRequestFailed: the API server issued no token.
	ReasonTokenRequestFailed = connstate.ReasonTokenRequestFailed
	// ReasonInvalidCredential: the provided data cannot be used as a credential.
	ReasonInvalidCredential = connstate.ReasonInvalidCredential
	// ReasonNotAllowed: the extension may not act as that ServiceAccount, or use that Secret.
	ReasonNotAllowed = connstate.ReasonNotAllowed
	// ReasonOperatorForbidden: the host operator itself lacks a permission.
	ReasonOperatorForbidden = connstate.ReasonOperatorForbidden
	// ReasonUnauthorized: the API server refuses the credential or the impersonation.
	ReasonUnauthorized = connstate.ReasonUnauthorized
	// ReasonStale: the connection is for another object or reference than the caller read. Only For
	// returns this reason; wait for the next event.
	ReasonStale = connstate.ReasonStale
	// ReasonIdentityMismatch: the API server or the extension states another identity.
	ReasonIdentityMismatch = connstate.ReasonIdentityMismatch
	// ReasonNotLeading: by Options.Ownership another replica leads, or none does.
	ReasonNotLeading = connstate.ReasonNotLeading
	// ReasonNotOwned: by Options.Ownership this replica does not have the extension: another one has
	// it, or none has it yet, or it is unknown. Return without a requeue, and write no status; the
	// extension source has an event when the extension comes to this replica.
	ReasonNotOwned = connstate.ReasonNotOwned
	// ReasonUnreachable: the API server does not answer.
	ReasonUnreachable = connstate.ReasonUnreachable
	// ReasonProbeFailed: the API server answers, but does not report the identity.
	ReasonProbeFailed = connstate.ReasonProbeFailed
	// ReasonThrottled: the API server, or the one that issues tokens, refuses requests for now (429,
	// or 503 with Retry-After).
	ReasonThrottled = connstate.ReasonThrottled
	// ReasonFiltered: the options exclude the extension. Only earlier handles return this reason.
	ReasonFiltered = connstate.ReasonFiltered
	// ReasonDeleted: the extension is gone. Only earlier handles return this reason.
	ReasonDeleted = connstate.ReasonDeleted
)

var (
	// ErrNotConnected is in the chain of every error that occurs because an extension is not
	// connected.
	ErrNotConnected = connstate.ErrNotConnected
	// ErrOutcomeUnknown is in the chain of the error of a request that was under way when its
	// connection ended, and that may have changed something. The API server may have carried it out,
	// or may still do so. Read the object before you decide what to do.
	ErrOutcomeUnknown = fence.ErrOutcomeUnknown
	// ErrWatchConflict is returned by Watch and WatchContent for a name that is in use for another
	// kind or scope, or by the other method.
	ErrWatchConflict = watches.ErrConflict
)
