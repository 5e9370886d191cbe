package buckets

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/ownership"
)

func TestOptions(t *testing.T) {
	for wrong, o := range map[string]Options{
		"Name must be set":          {Namespace: "n"},
		"Namespace must be set":     {Name: "a"},
		`Name "A" must be a name`:   {Name: "A", Namespace: "n"},
		"Buckets must be from 1":    {Name: "a", Buckets: -1, Namespace: "n"},
		"from 1 to 1024, not 1025":  {Name: "a", Buckets: 1025, Namespace: "n"},
		"whole seconds, not 1.5s":   {Name: "a", LeaseDuration: 1500 * time.Millisecond, Namespace: "n"},
		"less than LeaseDuration":   {Name: "a", RenewDeadline: 15 * time.Second, Namespace: "n"},
		"less than RenewDeadline":   {Name: "a", RetryPeriod: 10 * time.Second, Namespace: "n"},
		"HandOverTimeout must not":  {Name: "a", HandOverTimeout: -1, Namespace: "n"},
		"must be positive, and by ": {Name: "a", RetryPeriod: -1, Namespace: "n"},
	} {
		_, err := New(&rest.Config{}, o)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(wrong)))
	}
	g := NewWithT(t)
	o, err := Options{Name: "fleet", Namespace: "n"}.withDefaults()
	g.Expect(err).NotTo(HaveOccurred())
	other, err := Options{Name: "fleet", Namespace: "n"}.withDefaults()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.Identity).NotTo(Equal(other.Identity))
	g.Expect(o.memberLease()).NotTo(Equal(other.memberLease()))
	o.Identity = ""
	g.Expect(o).To(Equal(Options{
		Name:            "fleet",
		Namespace:       "n",
		Buckets:         64,
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     15 * time.Second / 7,
		HandOverTimeout: 20 * time.Second,
	}))

	e, err := New(&rest.Config{}, Options{Name: "fleet", Namespace: "n"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(e.Check(schema.GroupKind{Kind: "A"}, false)).To(Succeed())
	g.Expect(e.Check(schema.GroupKind{Kind: "B"}, true)).To(MatchError(ContainSubstring("one ClusterCache")))
	ctx, cancel := context.WithCancel(t.Context())
	handedOver := e.HandOver(ctx)
	g.Expect(handedOver.Err()).NotTo(HaveOccurred())
	cancel()
	g.Eventually(handedOver.Done()).Should(BeClosed(), "an engine that does not run has nothing to hand over")
	_, owned := e.Owns(&metav1.PartialObjectMetadata{})
	g.Expect(owned).To(BeFalse())
}

// calls is a Replica that notes what an engine asks of it.
type calls struct {
	taken, givenUp chan ownership.Share
}

func (c calls) Take(_ context.Context, share ownership.Share) error {
	c.taken <- share
	return nil
}

func (c calls) GiveUp(ctx context.Context, share ownership.Share) error {
	c.givenUp <- share
	return ctx.Err()
}

// The Pods of a StatefulSet have each extension once, while they run.
func TestForOrdinal(t *testing.T) {
	g := NewWithT(t)
	for _, wrong := range [][2]int{{-1, 3}, {3, 3}, {0, 0}} {
		_, err := ForOrdinal(wrong[0], wrong[1])
		g.Expect(err).To(HaveOccurred())
	}
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var engines []ownership.Engine
		var replicas []calls
		ended := make(chan error, 3)
		for i := range 3 {
			engine, err := ForOrdinal(i, 3)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(engine.Check(schema.GroupKind{}, false)).To(Succeed())
			replica := calls{make(chan ownership.Share, 1), make(chan ownership.Share, 1)}
			engines, replicas = append(engines, engine), append(replicas, replica)
		}
		owners := func(object client.Object) (n int) {
			for _, engine := range engines {
				if term, owned := engine.Owns(object); owned {
					g.Expect(term).To(BeNil())
					n++
				}
			}
			return n
		}
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uuid.NewUUID()}}
		g.Expect(owners(object)).To(BeZero(), "none runs")
		for i, engine := range engines {
			go func() { ended <- engine.Run(ctx, replicas[i]) }()
		}
		synctest.Wait()
		for range 100 {
			object.UID = uuid.NewUUID()
			g.Expect(owners(object)).To(Equal(1))
			n := 0
			for _, replica := range replicas {
				share := <-replica.taken
				if share(object) {
					n++
				}
				replica.taken <- share
			}
			g.Expect(n).To(Equal(1))
		}
		cancel()
		for range 3 {
			g.Expect(<-ended).NotTo(HaveOccurred(), "giving up is not cut short")
		}
		g.Expect(owners(object)).To(BeZero())
	})
}
