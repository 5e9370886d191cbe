package accessor

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// registry holds the accessors of all extensions by key. Its methods may be called from any
// goroutine.
type registry struct {
	byKey      *xsync.Map[client.ObjectKey, *identityAccessor] // a load takes half the time of sync.Map
	mayNotRead atomic.Pointer[error]                           // see MayNotRead; nil if the host operator may
	leads      func() bool                                     // see Options.Leads
	// checkKey returns why no extension can have a key; nil for any key
	checkKey      func(client.ObjectKey) error
	replicasShare bool // replicas share the extensions, so what is unknown here may be another's
	// notOwned has the extensions that were reconciled, and are not this replica's.
	notOwned *xsync.Map[client.ObjectKey, NotOwned]
}

// NotOwned is an extension that exists, and is not this replica's.
type NotOwned struct {
	UID     types.UID
	Created time.Time
}

func notOwnedOf(object client.Object) NotOwned {
	return NotOwned{UID: object.GetUID(), Created: object.GetCreationTimestamp().Time}
}

// NotOwned returns an extension that exists, and is not this replica's, or false for any other.
func (r *registry) NotOwned(key client.ObjectKey) (NotOwned, bool) { return r.notOwned.Load(key) }

func (r *registry) each(f func(*identityAccessor)) {
	r.byKey.Range(func(_ client.ObjectKey, a *identityAccessor) bool {
		f(a)
		return true
	})
}

// MayNotRead records why the host operator may not read the extensions; nil if it may. While a
// cause is recorded, unknown extensions have the reason OperatorForbidden.
func (r *registry) MayNotRead(cause error) {
	if cause == nil {
		r.mayNotRead.Store(nil)
		return
	}
	r.mayNotRead.Store(&cause)
}

func (r *registry) find(key client.ObjectKey) (*identityAccessor, error) {
	found, ok := r.byKey.Load(key)
	if !ok {
		if r.checkKey != nil {
			if err := r.checkKey(key); err != nil {
				return nil, err
			}
		}
		reason, cause := absentReason(r.absence())
		return nil, &connstate.NotConnectedError{Extension: key, Reason: reason, Err: cause}
	}
	return found, nil
}

func (r *registry) absence() absence {
	a := absence{oneLeads: r.leads != nil, leads: r.leads != nil && r.leads(), shared: r.replicasShare}
	if cause := r.mayNotRead.Load(); cause != nil {
		a.mayNotRead = *cause
	}
	return a
}

// absence is what decides why an extension that has no accessor has no connection.
type absence struct {
	oneLeads   bool  // one replica at a time acts for all extensions
	leads      bool  // this replica does
	shared     bool  // replicas share the extensions
	mayNotRead error // why the host operator may not read the extensions; nil if it may
}

// absentReason returns why an extension that has no accessor has no connection. The machine of an
// accessor decides why any other has none.
func absentReason(a absence) (connstate.Reason, error) {
	switch {
	case a.oneLeads && !a.leads:
		return connstate.ReasonNotLeading, fence.ErrClosed
	case a.shared:
		return connstate.ReasonNotOwned, errNotOwned
	case a.mayNotRead != nil:
		return connstate.ReasonOperatorForbidden, a.mayNotRead
	default:
		return connstate.ReasonNotStarted, errUnknown
	}
}

// GetClient returns what At(key).GetClient returns. This is the call that controllers repeat most,
// and a connected extension takes the shortest way.
func (r *registry) GetClient(ctx context.Context, key client.ObjectKey) (client.Client, error) {
	if a, ok := r.byKey.Load(key); ok {
		if built := a.published.Load().builtClients.Load(); built != nil {
			return built.Cached, nil
		}
	}
	return r.At(key).GetClient(ctx)
}

// Keys returns the keys of all known extensions, in no particular order.
func (r *registry) Keys() (keys []client.ObjectKey) {
	r.each(func(a *identityAccessor) { keys = append(keys, a.key) })
	return keys
}

// AllKeys returns Keys, and the keys of the extensions that are not this replica's.
func (r *registry) AllKeys() []client.ObjectKey {
	keys := r.Keys()
	r.notOwned.Range(func(key client.ObjectKey, _ NotOwned) bool {
		keys = append(keys, key)
		return true
	})
	return keys
}

// States returns a snapshot of all connections, sorted by key.
func (r *registry) States() []State {
	var states []State
	r.each(func(a *identityAccessor) { states = append(states, a.state()) })
	slices.SortFunc(states, func(x, y State) int {
		return strings.Compare(x.Extension.Namespace+"\x00"+x.Extension.Name, y.Extension.Namespace+"\x00"+y.Extension.Name)
	})
	return states
}

// Object returns the extension as last reconciled, nil if the extension is unknown. The object is
// shared: do not change it.
func (r *registry) Object(key client.ObjectKey) client.Object {
	a, err := r.find(key)
	if err != nil {
		return nil
	}
	return a.lastObject()
}

// Objects returns every known extension as last reconciled. The objects are shared: do not change
// them.
func (r *registry) Objects() []client.Object {
	var objects []client.Object
	r.each(func(a *identityAccessor) {
		objects = append(objects, a.lastObject())
	})
	return objects
}

// EachUnhealthy calls f for every known extension that is not connected, or whose last probe
// failed. The argument since is the time of the last success, or else the time at which the
// extension became known.
func (r *registry) EachUnhealthy(f func(object client.Object, since time.Time)) {
	r.each(func(a *identityAccessor) {
		if object, since, unhealthy := a.unhealthy(); unhealthy {
			f(object, since)
		}
	})
}
