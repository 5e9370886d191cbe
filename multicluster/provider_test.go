package multicluster

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The interfaces of multicluster-runtime, with its named types.
type (
	clusterName string
	aware       interface {
		Engage(ctx context.Context, name clusterName, cluster cluster.Cluster) error
	}
	provider interface {
		Get(ctx context.Context, name clusterName) (cluster.Cluster, error)
		IndexField(ctx context.Context, object client.Object, field string, extract client.IndexerFunc) error
	}
	providerRunnable interface {
		Start(ctx context.Context, aware aware) error
	}
	stringAware interface {
		Engage(ctx context.Context, name string, cluster cluster.Cluster) error
	}
	stringProvider interface {
		Get(ctx context.Context, name string) (cluster.Cluster, error)
		IndexField(ctx context.Context, object client.Object, field string, extract client.IndexerFunc) error
		Start(ctx context.Context, aware stringAware) error
	}
)

var (
	_ provider         = (*Provider[clusterName, aware])(nil)
	_ providerRunnable = (*Provider[clusterName, aware])(nil)
	_ stringProvider   = (*Provider[string, stringAware])(nil)
)

// recorder is an Aware. It notes the contexts and clusters of each name.
type recorder struct {
	// engage, if set, is what Engage returns.
	engage func(ctx context.Context, name clusterName, c cluster.Cluster) error

	mu    sync.Mutex
	calls map[clusterName][]engaged // guarded by mu
}

type engaged struct {
	ctx     context.Context //nolint:containedctx // that of Engage
	cluster cluster.Cluster
	at      time.Time
	endedIn time.Duration // how long after at ctx ended
}

func (r *recorder) Engage(ctx context.Context, name clusterName, c cluster.Cluster) error {
	r.mu.Lock()
	if r.calls == nil {
		r.calls = map[clusterName][]engaged{}
	}
	i, at := len(r.calls[name]), time.Now()
	r.calls[name] = append(r.calls[name], engaged{ctx: ctx, cluster: c, at: at})
	r.mu.Unlock()
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls[name][i].endedIn = time.Since(at)
	})
	if r.engage != nil {
		return r.engage(ctx, name, c)
	}
	return nil
}

func (r *recorder) of(name clusterName) []engaged {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[name]
}

// live returns how many contexts have not ended, by name.
func (r *recorder) live() map[clusterName]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	live := map[clusterName]int{}
	for name, calls := range r.calls {
		for _, call := range calls {
			if call.ctx.Err() == nil {
				live[name]++
			}
		}
	}
	return live
}

// indexedCache is a ClusterCache whose clusters note the indexes.
type indexedCache struct {
	clustercache.ClusterCache

	mu       sync.Mutex
	clusters map[cluster.Cluster]*indexedCluster // guarded by mu
}

func (i *indexedCache) GetCluster(ctx context.Context, key client.ObjectKey) (cluster.Cluster, error) {
	whole, err := i.ClusterCache.GetCluster(ctx, key)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.clusters == nil {
		i.clusters = map[cluster.Cluster]*indexedCluster{}
	}
	if i.clusters[whole] == nil {
		i.clusters[whole] = &indexedCluster{Cluster: whole}
	}
	return i.clusters[whole], nil
}

type indexedCluster struct {
	cluster.Cluster

	mu     sync.Mutex
	fields []string // guarded by mu
	fails  error    // guarded by mu
}

func (c *indexedCluster) GetFieldIndexer() client.FieldIndexer { return c }

func (c *indexedCluster) IndexField(_ context.Context, _ client.Object, field string, _ client.IndexerFunc) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails != nil {
		return c.fails
	}
	c.fields = append(c.fields, field)
	return nil
}

func (c *indexedCluster) has() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fields
}

func key(n int) client.ObjectKey {
	return client.ObjectKey{Namespace: "n", Name: fmt.Sprint("e", n)}
}

func name(n int) clusterName { return clusterName(key(n).String()) }

// world is a provider in a bubble of synctest, over n connected extensions.
type world struct {
	fake     *fake.Cache
	cache    *indexedCache
	provider *Provider[clusterName, aware]
	client   client.Client
	stop     func() error // ends Start, and returns its result
}

func newWorld(t *testing.T, n int, to aware) *world {
	g := NewWithT(t)
	w := &world{fake: fake.NewFakeEmptyCache(), client: clientfake.NewFakeClient()}
	w.cache = &indexedCache{ClusterCache: w.fake}
	var err error
	w.provider, err = New[clusterName, aware](w.cache, Options[clusterName]{})
	g.Expect(err).NotTo(HaveOccurred())
	for i := range n {
		w.fake.Connect(key(i), w.client)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.provider.Start(ctx, to) }()
	stopped := sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	w.stop = stopped
	t.Cleanup(func() {
		_ = stopped()
		w.fake.Close()
	})
	synctest.Wait()
	return w
}

// Each connection is engaged once, with a context that ends with it and not before; a reconnect
// engages anew; and all contexts end with Start.
func TestEngages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		const all, some = 200, 50
		r := &recorder{}
		w := newWorld(t, all, r)
		g.Expect(r.live()).To(HaveLen(all))
		for n := range some {
			w.fake.Disconnect(key(n), clustercache.ReasonUnreachable)
		}
		synctest.Wait()
		g.Expect(r.live()).To(HaveLen(all - some))
		for n := range some {
			w.fake.Connect(key(n), w.client)
		}
		synctest.Wait()
		for n := range some {
			w.fake.Connect(key(n), w.client) // in place of the connection
		}
		synctest.Wait()
		g.Expect(r.live()).To(HaveLen(all))
		w.fake.FailProbe(key(all - 1)) // is no end of the connection
		synctest.Wait()
		w.fake.PassProbe(key(all - 1))
		synctest.Wait()
		for n := range all {
			calls := r.of(name(n))
			g.Expect(calls).To(HaveLen(map[bool]int{true: 3, false: 1}[n < some]))
			g.Expect(r.live()[name(n)]).To(Equal(1))
			latest := calls[len(calls)-1]
			g.Expect(latest.ctx.Err()).NotTo(HaveOccurred())
			g.Expect(w.provider.Get(t.Context(), name(n))).To(BeIdenticalTo(latest.cluster))
		}
		g.Expect(w.stop()).To(Succeed())
		g.Expect(r.live()).To(BeEmpty())
	})
}

// An Engage that blocks delays no other extension, and its own next connection until it returns.
func TestEngageThatBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		release := make(chan struct{})
		r := &recorder{engage: func(_ context.Context, n clusterName, _ cluster.Cluster) error {
			if n == name(0) {
				<-release
			}
			return nil
		}}
		w := newWorld(t, 10, r)
		g.Expect(r.live()).To(HaveLen(10))
		w.fake.Connect(key(0), w.client)
		w.fake.Connect(key(1), w.client)
		synctest.Wait()
		g.Expect(r.of(name(0))).To(HaveLen(1))
		g.Expect(r.of(name(0))[0].ctx.Err()).To(HaveOccurred(), "the connection has ended")
		g.Expect(r.of(name(1))).To(HaveLen(2))
		close(release)
		synctest.Wait()
		g.Expect(r.of(name(0))).To(HaveLen(2))
		g.Expect(r.live()).To(HaveLen(10))
	})
}

// An Engage that fails because its connection has ended is no failure of the next one.
func TestEngageThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := &recorder{engage: func(ctx context.Context, _ clusterName, _ cluster.Cluster) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		w := newWorld(t, 1, r)
		for n := range 3 {
			g.Expect(r.of(name(0))).To(HaveLen(n + 1))
			w.fake.Connect(key(0), w.client)
			synctest.Wait() // and no time passes
		}
		g.Expect(r.live()).To(HaveLen(1))
	})
}

// Start returns when the calls of Engage have.
func TestStartAwaitsEngage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var returned atomic.Bool
		r := &recorder{engage: func(ctx context.Context, _ clusterName, _ cluster.Cluster) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			returned.Store(true)
			return nil
		}}
		w := newWorld(t, 1, r)
		g.Expect(w.stop()).To(Succeed())
		g.Expect(returned.Load()).To(BeTrue())
	})
}

// An Engage that fails or panics is called again, less and less often, until the connection ends.
func TestEngageThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var left atomic.Int32
		left.Store(4)
		r := &recorder{engage: func(context.Context, clusterName, cluster.Cluster) error {
			switch n := left.Add(-1); {
			case n%2 == 1:
				return errors.New("not now")
			case n > 0:
				panic("it panics")
			}
			return nil
		}}
		w := newWorld(t, 1, r)
		time.Sleep(time.Hour)
		calls := r.of(name(0))
		g.Expect(calls).To(HaveLen(4))
		for _, call := range calls[:3] {
			g.Expect(call.endedIn).To(BeNumerically("<", time.Second), "its context ends when it fails")
		}
		for i, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			g.Expect(calls[i+1].at.Sub(calls[i].at)).To(And(BeNumerically(">=", wait), BeNumerically("<=", wait*6/5+1)))
			g.Expect(calls[i].ctx.Err()).To(HaveOccurred(), "a context of a call that failed has ended")
		}
		g.Expect(r.live()).To(HaveLen(1))
		left.Store(1000)
		w.fake.Connect(key(0), w.client)
		time.Sleep(time.Hour)
		g.Expect(len(r.of(name(0)))).To(And(BeNumerically(">", 50), BeNumerically("<", 75)), "one a minute in the end")
		w.fake.Disconnect(key(0), clustercache.ReasonUnreachable)
		synctest.Wait()
		before := len(r.of(name(0)))
		time.Sleep(time.Hour)
		g.Expect(r.of(name(0))).To(HaveLen(before))
	})
}

// An index is added to each connection once, before Engage and Get give it.
func TestIndexField(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var want atomic.Int32
		r := &recorder{engage: func(_ context.Context, _ clusterName, c cluster.Cluster) error {
			if n := len(c.(*indexedCluster).has()); n != int(want.Load()) {
				t.Errorf("Engage got a cluster with %d indexes", n)
			}
			return nil
		}}
		w := newWorld(t, 3, r)
		want.Store(2)
		index := func(field string) error {
			return w.provider.IndexField(t.Context(), &corev1.ConfigMap{}, field, func(client.Object) []string { return nil })
		}
		g.Expect(index("a")).To(Succeed())
		g.Expect(index("b")).To(Succeed())
		named := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
		g.Expect(w.provider.IndexField(t.Context(), named, "a", nil)).NotTo(Succeed(), "it is the same kind")
		g.Expect(index("a")).To(MatchError(`there is an index "a" of *v1.ConfigMap already`))
		w.fake.Connect(key(1), w.client)
		w.fake.Connect(key(3), w.client)
		synctest.Wait()
		for n := range 4 {
			calls := r.of(name(n))
			g.Expect(calls[len(calls)-1].cluster.(*indexedCluster).has()).To(Equal([]string{"a", "b"}))
		}
		found, err := w.provider.Get(t.Context(), name(2))
		g.Expect(err).NotTo(HaveOccurred())
		found.(*indexedCluster).fails = errors.New("no more indexes")
		want.Store(3)
		g.Expect(index("c")).To(MatchError(And(ContainSubstring("no more indexes"), ContainSubstring("n/e2"))))
		g.Expect(w.provider.Get(t.Context(), name(2))).To(BeIdenticalTo(found), "it goes on without the index")
		for _, n := range []int{0, 1, 3} {
			calls := r.of(name(n))
			g.Expect(calls[len(calls)-1].cluster.(*indexedCluster).has()).To(Equal([]string{"a", "b", "c"}))
		}
		found.(*indexedCluster).fails = &clustercache.NotConnectedError{}
		g.Expect(index("d")).To(Succeed(), "a connection that has ended needs no index")
	})
}

// Names are keys, and what is no name or not connected is not found.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := &recorder{}
		w := newWorld(t, 1, r)
		g.Expect(w.provider.Get(t.Context(), "n/e0")).NotTo(BeNil())
		for _, unknown := range []clusterName{"n/e1", "e0", "", "/e0", "n/", "n/e0/x"} {
			_, err := w.provider.Get(t.Context(), unknown)
			g.Expect(err).To(MatchError(ErrNotFound), "%q", unknown)
		}
		w.fake.Connect(client.ObjectKey{Name: "cluster-scoped"}, w.client)
		g.Expect(w.provider.Get(t.Context(), "cluster-scoped")).NotTo(BeNil())
		synctest.Wait()
		g.Expect(r.of("cluster-scoped")).To(HaveLen(1))
		w.fake.Disconnect(key(0), clustercache.ReasonUnreachable)
		_, err := w.provider.Get(t.Context(), "n/e0")
		g.Expect(err).To(MatchError(ErrNotFound))
		g.Expect(err).To(MatchError(clustercache.ErrNotConnected))
		g.Expect(err.Error()).To(ContainSubstring("Unreachable"))

		theirs := errors.New("theirs")
		mapped, err := New[string, stringAware](w.cache, Options[string]{
			ErrNotFound: theirs,
			Name:        func(key client.ObjectKey) string { return key.Namespace + "." + key.Name },
			Key: func(name string) (client.ObjectKey, bool) {
				namespace, name, ok := strings.Cut(name, ".")
				return client.ObjectKey{Namespace: namespace, Name: name}, ok
			},
		})
		g.Expect(err).NotTo(HaveOccurred())
		w.fake.Connect(key(0), w.client)
		g.Expect(mapped.Get(t.Context(), "n.e0")).NotTo(BeNil())
		_, err = mapped.Get(t.Context(), "n/e0")
		g.Expect(err).To(MatchError(theirs))
		_, err = New[string, stringAware](w.cache, Options[string]{Key: func(string) (client.ObjectKey, bool) {
			return client.ObjectKey{}, false
		}})
		g.Expect(err).To(MatchError(ContainSubstring("must be set together")))
	})
}

// Nothing is kept of extensions that are gone.
func TestForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, 20, &recorder{})
		g.Expect(w.provider.Start(t.Context(), &recorder{})).To(MatchError("the provider has been started already"))
		for n := range 20 {
			w.fake.Disconnect(key(n), clustercache.ReasonDeleted)
		}
		synctest.Wait()
		w.provider.mu.Lock()
		defer w.provider.mu.Unlock()
		g.Expect(maps.Keys(w.provider.known)).To(BeEmpty())
		g.Expect(maps.Keys(w.provider.engaged)).To(BeEmpty())
	})
}
