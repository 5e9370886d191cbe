package replicas

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/ownership/buckets"
	"github.com/latchkey-dev/latchkey/ownership/controllersharding"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

// options are the options of a replica. A replica is a process of this test binary.
type options struct {
	Name       string
	Kubeconfig string
	// LeaseHost is where the replica reaches the API server for its lease.
	LeaseHost string
	// APIHost is where the replica reaches the API server for everything else, if that is elsewhere.
	APIHost    string
	Extensions []string
	// Buckets is the number of buckets if the replicas share the extensions, 0 if one of them leads.
	Buckets int
	// Fleet is the name of the buckets' fleet.
	Fleet string
	// WithLeaderLease is whether replicas that share keep leaders away.
	WithLeaderLease bool
	// Ring is the ControllerRing if the extensions are ConfigMaps that a sharder divides.
	Ring string
	// ClusterScoped leaves the extensions what they are otherwise, although there is a Ring.
	ClusterScoped bool
	// Hang is an extension whose event handlers hang.
	Hang string
	// Lease is the duration of the replica's Leases, 0 for leaseDuration.
	Lease time.Duration
	// WritePause is the pause between writes for an extension, 0 for 5 ms.
	WritePause time.Duration
	// ReadEvery is how often a replica reads as each tenant that it is connected for, 0 for never.
	ReadEvery time.Duration
	// Updates makes a replica update what its cache has, instead of patching. Each update names the
	// version that was read.
	Updates bool
	// Unfenced leaves out what is tested, to see the tests fail.
	Unfenced bool
	// State makes the replica a part of the view of all.
	State *stateOptions
}

// leaderLease is the name of the Lease of replicas of which one leads.
const leaderLease = "replicas"

const optionsVariable = "LATCHKEY_TEST_REPLICA"

// runReplica runs a host operator that writes for all its tenants all the time, until it loses its
// lease or receives SIGTERM.
func runReplica(text string) error {
	var o options
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	logger := funcr.New(func(prefix, args string) {
		fmt.Fprintln(os.Stderr, time.Now().Format(time.StampMicro), prefix, args)
	}, funcr.Options{})
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent, config.Host = o.Name, cmp.Or(o.APIHost, config.Host)
	managerOptions := manager.Options{
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		NewCache:                scopedcache.New, // controller-runtime's leaks the goroutines of metadata watches
		GracefulShutdownTimeout: new(5 * time.Second),
	}
	if o.State != nil { // it may serve on until another one does
		managerOptions.GracefulShutdownTimeout = new(10 * time.Second)
	}
	cacheOptions := clustercache.Options{
		AllowIdentity: clustercache.GuardedByAdmission,
		Client:        clustercache.ClientOptions{UserAgent: o.Name, QPS: 10_000, Burst: 10_000},
	}
	cacheOptions.Client.Cache.ReadYourWrites = o.Updates
	writers, writeOnce := 2, patch
	if o.Updates {
		writers, writeOnce = 1, update
	}
	managerCtx := ctx
	if o.Ring != "" {
		engine, err := controllersharding.New(config, controllersharding.Options{
			Ring:          o.Ring,
			Shard:         o.Name,
			Namespace:     "default",
			LeaseDuration: cmp.Or(o.Lease, leaseDuration),
		})
		if err != nil {
			return err
		}
		cacheOptions.Ownership = o.fenced(engine)
		if !o.ClusterScoped {
			cacheOptions.Object, cacheOptions.AllowIdentity = &corev1.ConfigMap{}, nil
			cacheOptions.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{
				NamePath: "data.serviceAccount"})
			managerOptions.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Label: engine.Selector()}}
		}
	} else if o.Buckets > 0 {
		leases := rest.CopyConfig(config)
		if o.LeaseHost != "" {
			leases.Host = o.LeaseHost
		}
		engine, err := buckets.New(leases, buckets.Options{
			Namespace:     "default",
			Name:          o.Fleet,
			Identity:      o.Name,
			Buckets:       o.Buckets,
			LeaseDuration: cmp.Or(o.Lease, leaseDuration),
		})
		if err != nil {
			return err
		}
		managerCtx = engine.HandOver(ctx)
		cacheOptions.Ownership, cacheOptions.WatchFilterValue = o.fenced(engine), o.Fleet
		if o.WithLeaderLease {
			cacheOptions.Ownership, err = ownership.WithLeaderLease(cacheOptions.Ownership, leases,
				ownership.LeaderOptions{
					Lease:         types.NamespacedName{Namespace: "default", Name: leaderLease},
					Holder:        "all",
					LeaseDuration: cmp.Or(o.Lease, leaseDuration),
				})
			if err != nil {
				return err
			}
		}
	} else if err := elect(config, o, &managerOptions, &cacheOptions); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, managerOptions)
	if err != nil {
		return err
	}
	cc, err := clustercache.SetupWithManager(ctx, mgr, cacheOptions, controller.Options{})
	if err != nil {
		return err
	}
	if err := mgr.Add(everywhere(func(ctx context.Context) error {
		report(ctx, cc, o.ReadEvery)
		return nil
	})); err != nil {
		return err
	}
	if o.State != nil {
		if err := serveStates(config, mgr, cc, o); err != nil {
			return err
		}
	}
	if o.Hang != "" {
		if err := hangForEvents(mgr, cc, keyOf(o.Hang)); err != nil {
			return err
		}
	}
	if err := mgr.Add(everywhere(func(ctx context.Context) error {
		var writing sync.WaitGroup
		for _, extension := range o.Extensions {
			for range writers {
				writing.Go(func() { write(ctx, cc, keyOf(extension), cmp.Or(o.WritePause, 5*time.Millisecond), writeOnce) })
			}
		}
		writing.Wait()
		return nil
	})); err != nil {
		return err
	}
	if err := mgr.Start(managerCtx); err != nil {
		return err
	}
	for range 10 { // a TCP connection with a stream that was cancelled is not idle at once
		utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport)
		if err = goleak.Find(); err == nil {
			break
		}
	}
	return err
}

// keyOf returns the key of an extension: its name, or namespace and name.
func keyOf(extension string) client.ObjectKey {
	if namespace, name, ok := strings.Cut(extension, "/"); ok {
		return client.ObjectKey{Namespace: namespace, Name: name}
	}
	return client.ObjectKey{Name: extension}
}

// fenced returns the engine, or one whose extensions have no fence.
func (o *options) fenced(engine ownership.Engine) ownership.Engine {
	if o.Unfenced {
		return unfencedEngine{engine}
	}
	return engine
}

type unfencedEngine struct{ ownership.Engine }

func (e unfencedEngine) Owns(extension client.Object) (*fence.Term, bool) {
	_, owned := e.Engine.Owns(extension)
	return nil, owned
}

// everywhere is a runnable that does not wait until its replica leads.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }
func (everywhere) NeedLeaderElection() bool          { return false }

// elect sets up a leader election, and its fence.
func elect(config *rest.Config, o options, m *manager.Options, c *clustercache.Options) error {
	lock, err := newLock(config, o)
	if err != nil {
		return err
	}
	var f *fence.Fence
	m.LeaderElectionResourceLockInterface, f = fence.ForLeaderElection(lock, leaseDuration)
	m.LeaderElection, m.LeaderElectionReleaseOnCancel = true, true
	m.LeaseDuration, m.RenewDeadline, m.RetryPeriod = new(leaseDuration), new(renewDeadline), new(retryPeriod)
	if !o.Unfenced {
		c.Ownership = ownership.Leader(f)
	}
	return nil
}

// change is a line of a replica's report: an extension connected there, or is not connected any
// more.
type change struct {
	At        time.Time
	Extension string
	Connected bool
}

// report writes each change to the standard output, and reads as each connected tenant now and
// then.
func report(ctx context.Context, cc clustercache.ClusterCache, readEvery time.Duration) {
	var mu sync.Mutex
	connected := map[string]bool{}
	var running sync.WaitGroup
	defer running.Wait()
	if readEvery > 0 {
		running.Go(func() { readAll(ctx, cc, readEvery) })
	}
	out := json.NewEncoder(os.Stdout)
	cc.SubscribeStates(ctx, func(keys []client.ObjectKey) {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range keys {
			state, _ := cc.GetConnectionState(ctx, key)
			if is := state.Phase == clustercache.PhaseConnected; is != connected[key.Name] {
				connected[key.Name] = is
				_ = out.Encode(change{time.Now(), key.Name, is})
			}
		}
	})
}

// readAll reads as each connected tenant, again and again, spread over the interval.
func readAll(ctx context.Context, cc clustercache.ClusterCache, interval time.Duration) {
	for ctx.Err() == nil {
		states := cc.ListConnectionStates(ctx)
		pause := interval / time.Duration(max(1, len(states)))
		for _, state := range states {
			if c, err := cc.GetUncachedClient(ctx, state.Extension); err == nil {
				_ = c.Get(ctx, client.ObjectKey{Namespace: "default", Name: state.Extension.Name}, &corev1.ConfigMap{})
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		if len(states) == 0 {
			select {
			case <-ctx.Done():
			case <-time.After(interval / 10):
			}
		}
	}
}

// newLock returns the lock of all replicas, as controller-runtime makes it.
func newLock(config *rest.Config, o options) (resourcelock.Interface, error) {
	config = rest.CopyConfig(config)
	config.Timeout = renewDeadline / 2
	if o.LeaseHost != "" {
		config.Host = o.LeaseHost
	}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	coordination, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return resourcelock.New(resourcelock.LeasesResourceLock, "default", leaderLease, core, coordination,
		resourcelock.ResourceLockConfig{Identity: o.Name})
}

// write writes as the tenant, again and again, and leaves the API server some room. Nothing in it
// cares for leases.
func write(ctx context.Context, cc clustercache.ClusterCache, extension client.ObjectKey, pause time.Duration,
	writeOnce func(ctx context.Context, cc clustercache.ClusterCache, extension, object client.ObjectKey, n int) error) {
	name := strings.TrimSuffix(extension.Name, extensionSuffix) // of a ConfigMap that is no extension itself
	object := client.ObjectKey{Namespace: "default", Name: name}
	for n := 0; ctx.Err() == nil; n++ {
		_ = writeOnce(ctx, cc, extension, object, n) // such as NotLeading
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func patch(ctx context.Context, cc clustercache.ClusterCache, extension, object client.ObjectKey, n int) error {
	c, err := cc.GetUncachedClient(ctx, extension)
	if err != nil {
		return err
	}
	return c.Patch(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: object.Namespace, Name: object.Name}},
		client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"data": {"n": "%d"}}`, n)))
}

// update changes what the cache has, at the version that it has. The API server rejects that as a
// conflict if the cache lacks a write.
func update(ctx context.Context, cc clustercache.ClusterCache, extension, object client.ObjectKey, n int) error {
	c, err := cc.GetClient(ctx, extension)
	if err != nil {
		return err
	}
	read := &corev1.ConfigMap{}
	if err := c.Get(ctx, object, read); err != nil {
		return err
	}
	read.Data = map[string]string{"n": strconv.Itoa(n)}
	return c.Update(ctx, read)
}

// hangForEvents watches for an extension with a handler that never returns.
func hangForEvents(mgr manager.Manager, cc clustercache.ClusterCache, extension client.ObjectKey) error {
	watcher, err := controller.New("hanging", mgr, controller.Options{
		NeedLeaderElection: new(false),
		Reconciler: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		}),
	})
	if err != nil {
		return err
	}
	return mgr.Add(everywhere(func(ctx context.Context) error {
		for ctx.Err() == nil {
			err := cc.Watch(ctx, extension, clustercache.NewWatcher(clustercache.WatcherOptions{
				Name:    "hanging",
				Watcher: watcher,
				Kind:    &corev1.ConfigMap{},
				Scope:   clustercache.Scope{Namespace: "default"},
				EventHandler: handler.Funcs{CreateFunc: func(context.Context, event.CreateEvent,
					workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					fmt.Fprintln(os.Stderr, "a handler hangs")
					select {}
				}},
			}))
			_ = err // such as NotOwned
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		return nil
	}))
}

// spin keeps a core busy until it is killed, for half a minute at most.
func spin() {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		continue
	}
}
