package ownership

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
)

// Kind is how an Engine divides the extensions among replicas.
type Kind int

const (
	// OneLeads is the kind of an engine with which one replica at a time has all extensions. Owns
	// gives the same answer for every extension, also before Run. On the other replicas the extensions
	// have the reason NotLeading, and the reconciler runs where the manager leads. Such an engine has
	// a term for what it owns, and never calls GiveUp: everything ends with the lease, and with the
	// manager.
	OneLeads Kind = iota + 1
	// Shared is the kind of an engine with which each replica has some of the extensions. The others
	// have the reason NotOwned there, and the reconciler runs on every replica.
	Shared
)

// Engine decides which extensions are this replica's. An Engine belongs to one ClusterCache. Owns
// may be called from any goroutine, at any time.
type Engine interface {
	// Kind returns how the engine divides the extensions. It is always the same.
	Kind() Kind

	// Check returns an error if the engine cannot divide extensions of this kind. SetupWithManager
	// calls Check, and fails with its error.
	Check(kind schema.GroupKind, namespaced bool) error

	// Owns reports whether the extension is this replica's now. term is the period in which this
	// replica may act for the extension, the same Term while it lasts; nil if no lease ends it.
	// Requests for the extension are sent in the term only. An extension whose term has ended is not
	// this replica's. Owns must not do I/O: it is called on each reconcile of an extension. If the
	// result changes for another reason than a change of the extension, or the end of the term, the
	// engine calls Take or GiveUp. Do not change the object, which has its GroupVersionKind. An
	// engine of kind OneLeads is also asked with an object that has no content.
	Owns(extension client.Object) (term *fence.Term, owned bool)

	// Run takes and gives up extensions until ctx is done. Then Run gives up all of them, and returns.
	// If Run returns before ctx is done, with or without an error, the manager ends. Where replicas
	// share, Owns reports false for every extension before Run is called, and after it has returned.
	Run(ctx context.Context, replica Replica) error
}

// Fitter is an Engine that knows whether other replicas divide the extensions in another way.
// WithLeaderLease ends with the error of Fits, which it asks before it takes the leader's Lease,
// and while it waits for it: those other replicas may hold it for good. An Engine that wraps a
// Fitter should be one.
type Fitter interface {
	Engine
	// Fits returns an error if other replicas divide the extensions in another way, nil if they do
	// not, or if that is not known. It may send requests.
	Fits(ctx context.Context) error
}

// Share selects extensions, by the object, which may lack its GroupVersionKind. A Share may be
// called from any goroutine, and must not change the object.
type Share func(extension client.Object) bool

// Replica does what an Engine decides. Its methods may be called from any goroutine.
type Replica interface {
	// Take connects the extensions in share. Owns must report that they are this replica's before the
	// call. Take returns when each of them that exists now is connected, or has been tried once, or
	// when ctx is done. With an engine of kind OneLeads, Take does not wait for that.
	Take(ctx context.Context, share Share) error

	// GiveUp ends the connections of the extensions in share. Owns must report that they are not this
	// replica's before the call. No request for them starts after the call began to end them, those
	// under way have 2 s to get their answers, and then end, and informers and event handlers return.
	// A handler that hangs delays GiveUp by 5 s, and is logged. When GiveUp returns without an error,
	// another replica may take the extensions: no request for them is sent any more. An error says
	// that something has not ended: a Reconcile hangs in a function of the host operator, or ctx ended
	// too early. Then only the end of the fence keeps the extensions from being connected again.
	// Without that, call GiveUp again.
	GiveUp(ctx context.Context, share Share) error
}
