package clustercache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// Giving up waits for the Reconciles of its extensions that have begun, for a time, and for no
// others. A Reconcile that hangs keeps no other from its turn.
func TestAwaitReconciles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := &owner{}
		named := func(name string) client.Object {
			return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}
		share := func(name string) ownership.Share {
			return func(extension client.Object) bool { return extension.GetName() == name }
		}
		endHanging := o.reconciling(named("hangs"))
		begun := time.Now()
		err := o.awaitReconciles(t.Context(), share("hangs"))
		g.Expect(err).To(MatchError(ContainSubstring("a Reconcile of hangs")))
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
		g.Expect(time.Since(begun)).To(Equal(reconcileTimeout))

		end := o.reconciling(named("other"))
		awaited := make(chan error, 1)
		go func() { awaited <- o.awaitReconciles(t.Context(), share("other")) }()
		synctest.Wait()
		g.Expect(awaited).NotTo(Receive())
		later := o.reconciling(named("other"))
		end()
		synctest.Wait()
		g.Expect(awaited).To(Receive(BeNil()), "one that begins later asks the engine anew")
		later()
		g.Expect(o.awaitReconciles(t.Context(), share("other"))).To(Succeed())
		endHanging()
		g.Expect(o.running).To(BeEmpty())
	})
}

// An extension whose term has ended is not this replica's, whatever the engine says: also if the
// engine asked a fence that was not open yet.
func TestTermThatHasEnded(t *testing.T) {
	g := NewWithT(t)
	lease, f := testutil.NewLease()
	engine := &fixedEngine{}
	o := &owner{engine: engine}
	owns := func() bool { _, owned := o.term(nil); return owned }
	g.Expect(owns()).To(BeTrue(), "without a lease")
	leads := (&owner{engine: engine, reconciler: &reconciler{}}).leads()
	g.Expect(leads()).To(BeTrue())
	engine.term = f.Term()
	g.Expect(owns()).To(BeFalse(), "before the lease")
	lease.Renew(3600)
	g.Expect(owns()).To(BeFalse(), "a term does not begin again")
	engine.term = f.Term()
	g.Expect(owns()).To(BeTrue())
	g.Expect(leads()).To(BeTrue())
	lease.Release()
	g.Expect(owns()).To(BeFalse())
	g.Expect(leads()).To(BeFalse())
}

// fixedEngine has every extension in one term.
type fixedEngine struct {
	ownership.Engine
	term *fence.Term
}

func (e *fixedEngine) Kind() ownership.Kind { return ownership.OneLeads }

func (e *fixedEngine) Owns(client.Object) (*fence.Term, bool) { return e.term, true }
