package buckets

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/ownership"
)

// idle is a Replica that has nothing to connect. GiveUp waits while hangs is full.
type idle struct{ hangs chan struct{} }

func (idle) Take(context.Context, ownership.Share) error { return nil }

func (i idle) GiveUp(ctx context.Context, _ ownership.Share) error {
	select {
	case i.hangs <- struct{}{}:
		<-i.hangs
	case <-ctx.Done():
	}
	return ctx.Err()
}

// divider is a replica with a number of buckets, and perhaps another kind.
type divider struct {
	*member
	idle idle
	err  error // of Run, once ended has been received from
}

// divisions are replicas that may divide one fleet in several ways, in virtual time.
type divisions struct {
	t        *testing.T
	g        *WithT
	server   *leaseServer
	uids     []types.UID
	replicas []*divider
}

func newDivisions(t *testing.T) *divisions {
	d := &divisions{t: t, g: NewWithT(t), server: newLeaseServer()}
	for range 100 {
		d.uids = append(d.uids, uuid.NewUUID())
	}
	return d
}

func (d *divisions) join(name string, buckets int) *divider {
	engine, err := New(&rest.Config{}, Options{Name: "fleet", Namespace: "n", Identity: name, Buckets: buckets})
	d.g.Expect(err).NotTo(HaveOccurred())
	r := &divider{
		member: &member{t: d.t, name: name, engine: engine, ended: make(chan error, 1)},
		idle:   idle{make(chan struct{}, 1)},
	}
	engine.leases = path{d.server.CoordinationV1(), &r.cut}
	engine.watching = engine.leases
	d.g.Expect(engine.Check(schema.GroupKind{Kind: "X"}, false)).To(Succeed())
	ctx, cancel := context.WithCancel(ctrl.LoggerInto(d.t.Context(), logr.Discard()))
	r.stop = cancel
	d.t.Cleanup(cancel)
	go func() { r.ended <- engine.Run(ctx, r.idle) }()
	d.replicas = append(d.replicas, r)
	return r
}

// served counts the extensions that each replica serves, and fails if one has two whose terms last.
func (d *divisions) served() map[string]int {
	d.t.Helper()
	served := map[string]int{}
	for _, uid := range d.uids {
		first := ""
		for _, r := range d.replicas {
			term, owned := r.engine.Owns(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uid}})
			if !owned || term.Err() != nil {
				continue
			}
			served[r.name]++
			if first != "" {
				d.t.Fatalf("%s: %s and %s serve it", uid, first, r.name)
			}
			first = r.name
		}
	}
	return served
}

// pass lets time pass, and looks often.
func (d *divisions) pass(duration time.Duration) {
	d.t.Helper()
	for end := time.Now().Add(duration); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		d.served()
	}
}

func (d *divisions) delete(selector string) {
	leases := d.server.CoordinationV1().Leases("n")
	list, err := leases.List(d.t.Context(), metav1.ListOptions{LabelSelector: selector})
	d.g.Expect(err).NotTo(HaveOccurred())
	d.g.Expect(list.Items).NotTo(BeEmpty())
	for _, lease := range list.Items {
		d.g.Expect(leases.Delete(d.t.Context(), lease.Name, metav1.DeleteOptions{})).To(Succeed())
	}
}

// refused expects that a replica ended, because the others divide the fleet in another way.
func (d *divisions) refused(r *divider, others, own string) {
	d.t.Helper()
	select {
	case r.err = <-r.ended:
	default:
		d.t.Fatalf("%s goes on", r.name)
	}
	d.g.Expect(r.err).To(MatchError(errDivided))
	d.g.Expect(r.err).To(MatchError(ContainSubstring("%s, and this replica has %s", others, own)))
}

// A fleet is divided in one way at a time, whatever of its Leases is deleted, and when. Each
// extension has a replica again soon. The replicas that divide it in the way that is not recorded
// end, with an error.
func TestTwoDivisions(t *testing.T) {
	const toWait = 15*time.Second + 15*time.Second // of a Lease that is new: its duration, and some retries
	run := func(name string, test func(*divisions)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDivisions(t)
				test(d)
				for _, r := range d.replicas {
					r.stop()
					if r.err == nil {
						d.g.Expect(<-r.ended).NotTo(HaveOccurred())
					}
				}
				d.g.Expect(d.served()).To(BeEmpty())
			})
		})
	}
	all := func(d *divisions, names ...string) {
		d.t.Helper()
		served, sum := d.served(), 0
		for _, name := range names {
			d.g.Expect(served[name]).To(BeNumerically(">", len(d.uids)/2/len(names)), name)
			sum += served[name]
		}
		d.g.Expect(sum).To(Equal(len(d.uids)), "%v", served)
	}
	for _, deleted := range []string{FleetLabel + "=fleet", roleLabel + "=" + roleFleet} {
		run("the other one is faster, "+deleted, func(d *divisions) {
			a, b := d.join("a", 8), d.join("b", 8)
			d.pass(14 * time.Second)
			d.g.Expect(d.served()).To(BeEmpty(), "replicas from before could still act")
			d.pass(toWait)
			all(d, "a", "b")
			d.delete(deleted)
			c := d.join("c", 12)
			d.pass(5 * time.Second)
			d.refused(a, `"12"`, `"8"`)
			d.refused(b, `"12"`, `"8"`)
			d.pass(toWait)
			all(d, "c")
			again := d.join("a-again", 8)
			d.pass(time.Second)
			d.refused(again, `"12"`, `"8"`)
			d.pass(toWait)
			all(d, "c")
			c.stop()
		})
		run("those that run are faster, "+deleted, func(d *divisions) {
			d.join("a", 8)
			d.join("b", 8)
			d.pass(toWait)
			d.delete(deleted)
			d.pass(5 * time.Second)
			c := d.join("c", 12)
			d.pass(time.Second)
			d.refused(c, `"8"`, `"12"`)
			d.pass(toWait)
			all(d, "a", "b")
		})
		run("one does not reach the server, "+deleted, func(d *divisions) {
			a := d.join("a", 8)
			d.pass(toWait)
			all(d, "a")
			a.cut.Store(true)
			d.delete(deleted)
			d.join("c", 12)
			d.pass(8 * time.Second)
			all(d, "a") // its Lease lasts
			d.pass(toWait)
			all(d, "c")
			a.cut.Store(false)
			d.pass(10 * time.Second)
			d.refused(a, `"12"`, `"8"`)
			all(d, "c")
		})
	}
	run("the Lease says another number", func(d *divisions) {
		a := d.join("a", 8)
		d.pass(toWait)
		leases := d.server.CoordinationV1().Leases("n")
		fleet, err := leases.Get(d.t.Context(), "fleet-fleet", metav1.GetOptions{})
		d.g.Expect(err).NotTo(HaveOccurred())
		d.g.Expect(fleet.Spec.HolderIdentity).To(HaveValue(Equal("8 buckets of X")))
		fleet.Annotations[bucketsAnnotation] = "12"
		_, err = leases.Update(d.t.Context(), fleet, metav1.UpdateOptions{})
		d.g.Expect(err).NotTo(HaveOccurred())
		c := d.join("c", 12)
		d.pass(5 * time.Second)
		d.refused(a, `"12"`, `"8"`)
		d.pass(toWait)
		all(d, "c")
		c.stop()
	})
	run("the Lease says another number, and has no holder", func(d *divisions) {
		a := d.join("a", 8)
		d.pass(toWait)
		a.cut.Store(true)
		leases := d.server.CoordinationV1().Leases("n")
		fleet, err := leases.Get(d.t.Context(), "fleet-fleet", metav1.GetOptions{})
		d.g.Expect(err).NotTo(HaveOccurred())
		fleet.Annotations[bucketsAnnotation], fleet.Spec.HolderIdentity = "12", nil
		_, err = leases.Update(d.t.Context(), fleet, metav1.UpdateOptions{})
		d.g.Expect(err).NotTo(HaveOccurred())
		c := d.join("c", 12)
		d.pass(2 * toWait)
		all(d, "c")
		a.cut.Store(false)
		d.pass(10 * time.Second)
		d.refused(a, `"12"`, `"8"`)
		c.stop()
	})
	run("the Lease is another one's for a while", func(d *divisions) {
		d.join("a", 8)
		b := d.join("b", 8)
		d.pass(toWait)
		leases := d.server.CoordinationV1().Leases("n")
		fleet, err := leases.Get(d.t.Context(), "fleet-fleet", metav1.GetOptions{})
		d.g.Expect(err).NotTo(HaveOccurred())
		fleet.Spec.HolderIdentity = new("a person")
		_, err = leases.Update(d.t.Context(), fleet, metav1.UpdateOptions{})
		d.g.Expect(err).NotTo(HaveOccurred())
		d.pass(5 * time.Second)
		d.g.Expect(d.served()).To(BeEmpty())
		b.stop()
		d.pass(toWait)
		all(d, "a")
		d.server.ClearActions()
		time.Sleep(4 * time.Minute)
		for _, action := range d.server.Actions() {
			d.g.Expect(action.GetVerb()).NotTo(Equal("delete"), "the Lease of b is gone")
		}
	})
}

// Whatever is deleted, changed and cut off in whatever order, each extension has one replica at
// most, and one again when that ends.
func TestRandomDivisions(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, random := newDivisions(t), rand.New(rand.NewPCG(seed, 0))
				d.uids = d.uids[:40]
				leases := d.server.CoordinationV1().Leases("n")
				number := func() int { return []int{8, 12}[random.IntN(2)] }
				for step := range 15 {
					switch random.IntN(6) {
					case 0, 1:
						d.join(fmt.Sprint("replica-", step), number())
					case 2:
						_ = leases.Delete(t.Context(), "fleet-fleet", metav1.DeleteOptions{})
					case 3:
						if len(d.replicas) > 0 {
							cut := &d.replicas[random.IntN(len(d.replicas))].cut
							cut.Store(!cut.Load())
						}
					case 4:
						if fleet, err := leases.Get(t.Context(), "fleet-fleet", metav1.GetOptions{}); err == nil {
							fleet.Annotations[bucketsAnnotation] = strconv.Itoa(number())
							_, _ = leases.Update(t.Context(), fleet, metav1.UpdateOptions{})
						}
					case 5:
						list, err := leases.List(t.Context(), metav1.ListOptions{})
						d.g.Expect(err).NotTo(HaveOccurred())
						for _, lease := range list.Items {
							d.g.Expect(leases.Delete(t.Context(), lease.Name, metav1.DeleteOptions{})).To(Succeed())
						}
					}
					d.pass(time.Duration(random.IntN(20_000)) * time.Millisecond)
				}
				for _, r := range d.replicas {
					r.cut.Store(false)
				}
				d.join("eight", 8)
				d.join("twelve", 12)
				d.pass(90 * time.Second)
				sum := 0
				for _, n := range d.served() {
					sum += n
				}
				d.g.Expect(sum).To(Equal(len(d.uids)))
				for _, r := range d.replicas {
					r.stop()
					if err := <-r.ended; err != nil {
						d.g.Expect(err).To(MatchError(errDivided))
					}
				}
			})
		})
	}
}

// What is under way for a bucket ends with the Lease of the fleet, although that of the bucket is
// still held: its extensions cannot be given up yet.
func TestFenceOfTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDivisions(t)
		a := d.join("a", 1)
		d.pass(25 * time.Second)
		term, owned := a.engine.Owns(&metav1.PartialObjectMetadata{})
		d.g.Expect(owned).To(BeTrue())
		d.g.Expect(term.Err()).NotTo(HaveOccurred())
		a.idle.hangs <- struct{}{}
		d.delete(roleLabel + "=" + roleFleet)
		time.Sleep(3 * time.Second)
		for range 60 { // also when its elector, which goes on until then, finds the new Lease
			d.g.Expect(term.Err()).To(MatchError(fence.ErrClosed))
			now, owned := a.engine.Owns(&metav1.PartialObjectMetadata{})
			d.g.Expect(owned && now.Err() == nil).To(BeFalse())
			time.Sleep(100 * time.Millisecond)
		}
		bucket, err := d.server.CoordinationV1().Leases("n").Get(t.Context(), "fleet-bucket-0", metav1.GetOptions{})
		d.g.Expect(err).NotTo(HaveOccurred())
		d.g.Expect(bucket.Spec.HolderIdentity).To(HaveValue(Equal("a")))
		<-a.idle.hangs
		a.stop()
		d.g.Expect(<-a.ended).NotTo(HaveOccurred())
	})
}

// A replica asks whether it fits without a write, and a server that does not answer is none that
// says no.
func TestFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDivisions(t)
		a := d.join("a", 8)
		synctest.Wait()
		d.g.Expect(a.engine.Fits(t.Context())).To(Succeed())
		c, err := New(&rest.Config{}, Options{Name: "fleet", Namespace: "n", Buckets: 12})
		d.g.Expect(err).NotTo(HaveOccurred())
		c.leases, c.kind = a.engine.leases, a.engine.kind
		d.g.Expect(c.Fits(t.Context())).To(MatchError(errDivided))
		a.cut.Store(true)
		d.g.Expect(c.Fits(t.Context())).To(Succeed())
		a.cut.Store(false)
		d.delete(FleetLabel)
		d.g.Expect(c.Fits(t.Context())).To(Succeed())
		a.stop()
		d.g.Expect(<-a.ended).NotTo(HaveOccurred())
	})
}
