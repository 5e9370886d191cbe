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
	// OneLeads means: one replica at a time has all extensions. Owns gives the same answer for every
	// extension, also before Run. On the other replicas, extensions have the reason NotLeading. The
	// reconciler runs where the manager leads. The engine returns a term with each extension, and
	// never calls GiveUp: everything ends with the lease, or with the manager.
	OneLeads Kind = iota + 1
	// Shared means: each replica has some of the extensions. On a replica, the extensions of others
	// have the reason NotOwned. The reconciler runs on every replica.
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

	// Owns reports whether the extension is this replica's now, and in which term: requests for the
	// extension are sent in that term only. The term is the same pointer while it lasts; nil means
	// that no lease ends it. An extension whose term has ended is not this replica's.
	//
	// Owns is called on each reconcile of an extension, and must not do I/O. If the answer changes
	// without a change of the extension, and without the end of the term, the engine calls Take or
	// GiveUp. Owns must not change the object, which has its GroupVersionKind. An engine of kind
	// OneLeads is also asked with an object that has no content.
	Owns(extension client.Object) (term *fence.Term, owned bool)

	// Run takes and gives up extensions until ctx is done. Before Run returns, it gives up all
	// extensions. If Run returns before ctx is done, the manager ends. Where replicas share, Owns
	// reports false for every extension before Run is called and after Run has returned.
	Run(ctx context.Context, replica Replica) error
}

// Fitter is an Engine that knows whether other replicas divide the extensions in another way.
// WithLeaderLease calls Fits before it takes the leader's Lease and while it waits for the Lease,
// and ends with its error: those other replicas may hold the Lease for good. An Engine that wraps a
// Fitter should be a Fitter, too.
type Fitter interface {
	Engine
	// Fits returns an error if other replicas divide the extensions in another way, and nil if they do
	// not, or if that is not known. Fits may send requests.
	Fits(ctx context.Context) error
}

// Waiter is an Engine that may wait, before it takes any extension, until others have ended that
// serve the same extensions in another way.
type Waiter interface {
	Engine
	// Waiting reports whether the engine waits, which it does not any more after it has begun. Waiting
	// must not block, and may be called at any time.
	Waiting() bool
}

// Share selects extensions. The object may lack its GroupVersionKind, and must not be changed. A
// Share may be called from any goroutine.
type Share func(extension client.Object) bool

// Replica does what an Engine decides. Its methods may be called from any goroutine.
type Replica interface {
	// Take connects the extensions in share. Before the call, Owns must report that the extensions are
	// this replica's. Take returns when each extension that exists now is connected, or was tried
	// once, or when ctx is done. With an engine of kind OneLeads, Take does not wait.
	Take(ctx context.Context, share Share) error

	// GiveUp ends the connections of the extensions in share. Before the call, Owns must report that
	// the extensions are not this replica's. GiveUp first waits for Reconciles of the extensions, for
	// 5 s at most. Then no request for the extensions starts, and requests under way have 2 s for
	// their answers. Informers and event handlers return; a handler that hangs delays GiveUp by 5 s,
	// and is logged.
	//
	// When GiveUp returns nil, no request for the extensions is sent any more, and another replica may
	// take them. An error says what has not ended: a Reconcile hangs in a function of the host
	// operator, or ctx was done too early. Then only the end of the term keeps this replica from
	// connecting the extensions again: end the term, or call GiveUp again.
	GiveUp(ctx context.Context, share Share) error
}
