package replicas

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// stateOptions make a replica a part of the view of all.
type stateOptions struct {
	Group   string
	Service string // and beginning of the name of the Secret
	// Address stands for this replica in the Service's EndpointSlice, which may not have a loopback
	// address.
	Address     netip.Addr
	Port        uint16 // on which it serves the view of all
	PeerPort    uint16 // on which it serves the others
	PeerAddress netip.AddrPort
	PagePort    uint16 // of its status page
}

func serveStates(config *rest.Config, mgr manager.Manager, cc clustercache.ClusterCache, o options) error {
	loopback := netip.MustParseAddr("127.0.0.1")
	api, err := stateapi.New(cc, stateapi.Options{
		Group:  o.State.Group,
		Config: config,
		Service: stateapi.ServiceOptions{
			Namespace: "default",
			Name:      o.State.Service,
			Address:   o.State.Address,
		},
		Server: apiserver.ExtensionAPIServerOptions{
			BindAddress: netip.AddrPortFrom(loopback, o.State.Port).String(),
		},
		Fleet: stateapi.FleetOptions{
			Name:          o.Fleet,
			Namespace:     "default",
			Secret:        o.State.Service + "-authority",
			Identity:      o.Name,
			BindAddress:   netip.AddrPortFrom(loopback, o.State.PeerPort).String(),
			Address:       o.State.PeerAddress,
			LeaseDuration: cmp.Or(o.Lease, leaseDuration),
		},
	})
	if err != nil {
		return err
	}
	if err := servePage(mgr, cc, api, netip.AddrPortFrom(loopback, o.State.PagePort).String()); err != nil {
		return err
	}
	return mgr.Add(api)
}

// viewed is a fleet with one view of all its replicas, behind the API server.
type viewed struct {
	*fleet
	group, service string
	names          []string            // of the extensions
	paths          map[*replica]*proxy // by which the others reach it
	ways           map[*replica]*proxy // by which it reaches the API server
	pages          map[*replica]string // where its status page is
}

// newViewed creates a fleet with n extensions, and what leads to the replica that serves.
func newViewed(t testing.TB, name string, n int) *viewed {
	t.Helper()
	v := &viewed{
		fleet:   newFleet(t, name, options{Buckets: 8, Extensions: nil}),
		group:   name + ".state.example.com",
		service: name,
		paths:   map[*replica]*proxy{},
		ways:    map[*replica]*proxy{},
		pages:   map[*replica]string{},
		names:   manyExtensions(t, name, n),
	}
	g, c := NewWithT(t), admin(t)
	forwarder := v.forward(t)
	apiService := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": v.group, "version": "v1alpha1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
		"service": map[string]any{"namespace": "default", "name": v.service, "port": int64(forwarder.Port())},
	}}}
	apiService.SetAPIVersion("apiregistration.k8s.io/v1")
	apiService.SetKind("APIService")
	apiService.SetName("v1alpha1." + v.group)
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v.service + "-authority"}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v.service},
			Spec: corev1.ServiceSpec{
				Type:         corev1.ServiceTypeExternalName,
				ExternalName: "localhost",
				Ports:        []corev1.ServicePort{{Name: "https", Port: int32(forwarder.Port())}},
			},
		},
		apiService,
	} {
		g.Expect(c.Create(t.Context(), object)).To(Succeed())
		t.Cleanup(func() { _ = c.Delete(context.Background(), object) })
	}
	return v
}

// start adds a replica, which the others reach through a proxy.
func (v *viewed) start() *replica {
	v.t.Helper()
	n := len(v.replicas) + 1
	address := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
	v.options.State = &stateOptions{
		Group:    v.group,
		Service:  v.service,
		Address:  address,
		Port:     freePort(v.t),
		PeerPort: freePort(v.t),
		PagePort: freePort(v.t),
	}
	path := startProxyTo(v.t, fmt.Sprintf("127.0.0.1:%d", v.options.State.PeerPort))
	v.options.State.PeerAddress = netip.MustParseAddrPort(path.listener.Addr().String())
	way := startProxy(v.t)
	v.options.APIHost = way.url()
	r := v.fleet.start()
	v.paths[r], v.ways[r] = path, way
	v.pages[r] = fmt.Sprintf("http://127.0.0.1:%d/status/", v.options.State.PagePort)
	return r
}

func freePort(t testing.TB) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer func() { _ = listener.Close() }()
	return netip.MustParseAddrPort(listener.Addr().String()).Port()
}

// forward returns the address of a server that leads to the replica in the EndpointSlice, as the
// network of a cluster does.
func (v *viewed) forward(t testing.TB) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	c := admin(t)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { v.pass(ctx, c, conn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		running.Wait()
	})
	return netip.MustParseAddrPort(listener.Addr().String())
}

func (v *viewed) pass(ctx context.Context, c client.Client, front net.Conn) {
	defer func() { _ = front.Close() }()
	slice := &discoveryv1.EndpointSlice{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: "default", Name: v.service + "-leader"}, slice); err != nil ||
		len(slice.Endpoints) == 0 {
		return
	}
	port := slice.Ports[0].Port
	back, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		return
	}
	defer func() { _ = back.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = front.Close(), back.Close() })()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{front, back}, {back, front}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			_, _ = way[0].Close(), way[1].Close()
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}

func (v *viewed) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: v.group, Version: "v1alpha1", Resource: "connections"}
}

// rows returns the view, by name.
func (v *viewed) rows() (map[string]v1alpha1.Connection, error) {
	c, err := dynamic.NewForConfig(cp.Config())
	if err != nil {
		return nil, err
	}
	list, err := c.Resource(v.resource()).List(v.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	rows := map[string]v1alpha1.Connection{}
	for i := range list.Items {
		rows[list.Items[i].GetName()] = rowOf(&list.Items[i])
	}
	return rows, nil
}

func rowOf(object *unstructured.Unstructured) (c v1alpha1.Connection) {
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &c)
	return c
}

// agrees waits until the view is what the replicas have: each extension is connected, at the
// replica that says so.
func (v *viewed) agrees() {
	v.t.Helper()
	whole := func(g Gomega) map[string]*replica {
		owners := v.owners()
		g.Expect(len(owners)).To(Equal(len(v.names)), "extensions that replicas have connected")
		return owners
	}
	NewWithT(v.t).Eventually(func(g Gomega) {
		whole(g) // first: a list of thousands costs the replicas what they need to connect them
		rows, err := v.rows()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(rows).To(HaveLen(len(v.names)))
		owners := whole(g)
		for name, row := range rows {
			g.Expect(row.Status.State).To(Equal(v1alpha1.StateConnected), "%s: %s", name, row.Status.Message)
			g.Expect(row.Status.Replica).To(Equal(owners[name].name), name)
			g.Expect(row.Status.Identity.Username).To(HaveSuffix(":" + name))
			g.Expect(row.Status.ClaimedBy).To(BeEmpty())
		}
	}).WithTimeout(2 * patience).WithPolling(200 * time.Millisecond).Should(Succeed())
}

// serves returns the name of the replica that serves the view.
func (v *viewed) serves() string {
	lease := &coordinationv1.Lease{}
	NewWithT(v.t).Expect(admin(v.t).Get(v.t.Context(), client.ObjectKey{Namespace: "default", Name: v.name + "-state"},
		lease)).To(Succeed())
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// watcher is an informer on the view, which notes what must not be.
type watcher struct {
	mu      sync.Mutex
	rows    map[string]v1alpha1.Connection // guarded by mu
	broken  []string                       // guarded by mu
	counted int                            // guarded by mu
	dead    map[string]time.Time           // guarded by mu; replicas that cannot say anything, since when
}

func newWatcher() *watcher {
	return &watcher{rows: map[string]v1alpha1.Connection{}, dead: map[string]time.Time{}}
}

// watch starts an informer on the view, that ends with the test.
func (v *viewed) watch() *watcher {
	v.t.Helper()
	g := NewWithT(v.t)
	w := newWatcher()
	c, err := dynamic.NewForConfig(cp.Config())
	g.Expect(err).NotTo(HaveOccurred())
	factory := dynamicinformer.NewDynamicSharedInformerFactory(c, 0)
	informer := factory.ForResource(v.resource()).Informer()
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { w.see(rowOf(object.(*unstructured.Unstructured))) },
		UpdateFunc: func(_, object any) { w.see(rowOf(object.(*unstructured.Unstructured))) },
		DeleteFunc: func(object any) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if name, err := toolscache.DeletionHandlingObjectToName(object); err == nil {
				w.broken = append(w.broken, name.Name+" is absent")
			}
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	v.t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	g.Eventually(informer.HasSynced).WithTimeout(patience).Should(BeTrue())
	return w
}

// count returns how many rows were seen, also if they were the same as before.
func (w *watcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counted
}

// epochs returns how often the rows were connected anew that were seen last.
func (w *watcher) epochs() (sum int64) {
	for _, row := range w.seen() {
		sum += row.Status.Term + row.Status.Epoch
	}
	return sum
}

// state returns the state of a row.
func (w *watcher) state(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rows[name].Status.State
}

// deaf says that a replica cannot say anything from now on, or can again.
func (w *watcher) deaf(r *replica, is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.dead, r.name); is {
		w.dead[r.name] = time.Now()
	}
}

func (w *watcher) see(row v1alpha1.Connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counted++
	was, is := w.rows[row.Name].Status, row.Status
	if is.Replica == "" || is.State == v1alpha1.StateUnknown { // no replica vouches for it; what was shown counts
		if is.Term != 0 || is.Epoch != 0 {
			w.broken = append(w.broken, fmt.Sprintf("%s is %s, at %d/%d of %q", row.Name, is.State, is.Term, is.Epoch,
				is.Replica))
		}
		row.Status.Term, row.Status.Epoch, row.Status.Replica = was.Term, was.Epoch, was.Replica
		w.rows[row.Name] = row
		return
	}
	if was.Replica != "" && (is.Term < was.Term ||
		is.Replica == was.Replica && is.Term == was.Term && is.Epoch < was.Epoch) {
		w.broken = append(w.broken, fmt.Sprintf("%s goes from %d/%d of %s back to %d/%d of %s", row.Name, was.Term, was.Epoch,
			was.Replica, is.Term, is.Epoch, is.Replica))
	}
	w.rows[row.Name] = row
}

// silentFor is how long after a replica was silenced its rows may still be green: the time for
// which a replica is heard, and that of a busy machine.
const silentFor = 10 * time.Second

// check returns what must not be, for the watchers and in a list: also rows that are green, of
// replicas that cannot say anything. While no replica serves, nothing is shown.
func (v *viewed) check(watchers ...*watcher) (broken []string) {
	at := time.Now()
	rows, err := v.rows()
	if err == nil && len(rows) != len(v.names) {
		broken = append(broken, fmt.Sprintf("a list has %d of %d", len(rows), len(v.names)))
	}
	for _, w := range watchers {
		broken = append(broken, w.check(at, rows)...)
	}
	return broken
}

// check returns what the watcher has noted, and the rows of a list that are green and must not be.
func (w *watcher) check(at time.Time, rows map[string]v1alpha1.Connection) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	broken := slices.Clone(w.broken)
	for name, row := range rows {
		state := row.Status.State
		if since, dead := w.dead[row.Status.Replica]; dead && at.Sub(since) > silentFor &&
			(state == v1alpha1.StateConnected || state == v1alpha1.StateDegraded) {
			broken = append(broken, fmt.Sprintf("%s is %s, by %s, which says nothing since %s", name, state,
				row.Status.Replica, since.Format(time.TimeOnly)))
		}
	}
	return broken
}

// One list has what all replicas have, whichever of them serves it, and whatever happens to them.
func TestView(t *testing.T) {
	g := NewWithT(t)
	v := newViewed(t, "seen", 30)
	v.options.Lease = 5 * leaseDuration
	a, b := v.start(), v.start()
	v.agrees()
	w := v.watch()
	serving := func() *replica {
		name := v.serves()
		for _, r := range v.replicas {
			if r.name == name {
				return r
			}
		}
		return nil
	}
	c := v.start() // joins
	v.agrees()

	// One is suspended: it is not heard, its rows are not green, and nor are their conditions.
	owners, quiet := v.owners(), a
	if serving() == a {
		quiet = b
	}
	quiet.signal(syscall.SIGSTOP)
	g.Eventually(func(g Gomega) {
		rows, err := v.rows()
		g.Expect(err).NotTo(HaveOccurred())
		for name, row := range rows {
			if owners[name] != quiet {
				g.Expect(row.Status.State).To(Equal(v1alpha1.StateConnected), name)
				continue
			}
			g.Expect([]string{row.Status.State, row.Status.Reason, row.Status.Replica}).To(Equal(
				[]string{v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent, quiet.name}), name)
			for _, condition := range row.Status.Conditions {
				g.Expect(condition.Status).To(Equal(metav1.ConditionUnknown), name)
			}
		}
	}).WithTimeout(patience).Should(Succeed())
	quiet.signal(syscall.SIGCONT)
	v.agrees()

	// The one that serves is suspended: another one serves.
	first := serving()
	g.Expect(first).To(BeElementOf(a, b, c))
	first.signal(syscall.SIGSTOP)
	w.deaf(first, true)
	g.Eventually(serving).WithTimeout(patience).ShouldNot(Equal(first))
	first.signal(syscall.SIGCONT)
	w.deaf(first, false)
	v.agrees()

	// One that ends hands over. kubectl notices nothing: what others have is not without a replica.
	last := serving()
	owners = v.owners()
	stop := make(chan struct{})
	var failures []string
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			rows, err := v.rows()
			if err != nil {
				failures = append(failures, err.Error())
				continue
			}
			if len(rows) != len(v.names) {
				failures = append(failures, fmt.Sprintf("a list has %d of %d", len(rows), len(v.names)))
			}
			for name, row := range rows {
				if owners[name] != last && row.Status.State != v1alpha1.StateConnected {
					failures = append(failures, fmt.Sprintf("%s is %s: %s", name, row.Status.State, row.Status.Reason))
				}
			}
		}
	})
	last.signal(syscall.SIGTERM)
	g.Eventually(last.ended).WithTimeout(patience).Should(BeClosed())
	v.agrees()
	close(stop)
	asking.Wait()
	g.Expect(failures).To(BeEmpty())

	// One that is killed.
	killed := serving()
	v.kill(killed)
	w.deaf(killed, true)
	v.agrees()
	g.Expect(v.check(w)).To(BeEmpty())
}

// reconnect lets all extensions be connected anew, one after the other, until end is called.
func (v *viewed) reconnect() (end func()) {
	ctx, cancel := context.WithCancel(v.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for n, c := 0, admin(v.t); ctx.Err() == nil; n++ {
			account := &corev1.ServiceAccount{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v.names[n%len(v.names)]},
			}
			_ = c.Delete(context.WithoutCancel(ctx), account)
			_ = c.Create(context.WithoutCancel(ctx), account)
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
}

// list lists the view all the time, until end is called, and notes what must not be.
func (v *viewed) list() (lists *watcher, end func()) {
	lists = newWatcher()
	ctx, cancel := context.WithCancel(v.t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		for ctx.Err() == nil {
			rows, err := v.rows()
			for _, row := range rows {
				lists.see(row)
			}
			if err == nil {
				continue
			}
			select { // no replica serves
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return lists, func() {
		cancel()
		asking.Wait()
	}
}

// The replica that serves next may hear of what the others do later than the one before has shown
// it: what is shown still does not go back.
func TestViewHandedOverByOneThatHearsMore(t *testing.T) {
	v := newViewed(t, "behind", 60)
	v.start()
	v.start()
	v.start()
	v.agrees()
	w := v.watch()
	lists, stop := v.list()
	defer stop()
	running := slices.Clone(v.replicas)
	random := rand.New(rand.NewPCG(*seed, 0)) //nolint:gosec // not a secret
	for range 3 {
		ends := []func(){v.reconnect()}
		for _, r := range running {
			ends = append(ends, v.paths[r].lag(random))
		}
		for _, end := range ends {
			t.Cleanup(end)
		}
		before := lists.epochs()
		at := slices.IndexFunc(running, func(r *replica) bool { return r.name == v.serves() })
		NewWithT(t).Expect(at).To(BeNumerically(">=", 0))
		last := running[at]
		last.signal(syscall.SIGTERM) // the others take what it has, and one of them takes over
		running = append(slices.Delete(running, at, at+1), v.start())
		NewWithT(t).Eventually(last.ended).WithTimeout(patience).Should(BeClosed())
		NewWithT(t).Eventually(v.serves).WithTimeout(patience).Should(And(Not(BeEmpty()), Not(Equal(last.name))))
		NewWithT(t).Eventually(lists.epochs).WithTimeout(patience).Should(BeNumerically(">", before))
		for _, end := range ends {
			end()
		}
		v.agrees()
		v.follows(w)
		NewWithT(t).Expect(v.check(w, lists)).To(BeEmpty())
	}
}

// The replica that serves next hears of what another one does so late that no read waits for it:
// what that one has is Unknown until it is heard, and does not go back.
func TestViewHandedOverByOneThatIsFarBehind(t *testing.T) {
	g := NewWithT(t)
	v := newViewed(t, "far", 30)
	v.options.Lease = 5 * leaseDuration // it keeps what it has while it cannot reach the API server
	first := v.start()
	v.agrees()
	late := v.start()
	g.Eventually(v.rows).WithTimeout(patience).Should(ContainElement(HaveField("Status.Replica", late.name)))
	v.agrees()
	others := v.paths[late].connections()
	next := v.start()
	v.agrees()
	g.Expect(v.serves()).To(Equal(first.name))
	w := v.watch()
	lists, stop := v.list()
	defer stop()
	var toNext []*proxied
	g.Eventually(func() []*proxied {
		toNext = slices.DeleteFunc(v.paths[late].connections(), func(one *proxied) bool {
			return slices.Contains(others, one) || time.Since(one.begun) < 2*time.Second // its first one may fail
		})
		return toNext
	}).WithTimeout(patience).ShouldNot(BeEmpty())
	begun := time.Now()
	inTime := v.paths[late].fallBehind(toNext)
	defer inTime()
	end := v.reconnect()
	defer end()
	g.Eventually(func() time.Duration { return time.Since(begun) }).WithTimeout(patience).
		Should(BeNumerically(">", 18*time.Second)) // when reads end to wait, what was said now is not heard yet
	v.ways[late].set(true, true) // it does not take over
	v.kill(first)
	w.deaf(first, true)
	lists.deaf(first, true)
	g.Eventually(v.serves).WithTimeout(patience).Should(Equal(next.name))
	v.ways[late].set(false, true)
	g.Eventually(func(g Gomega) {
		rows, err := v.rows()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(rows).To(ContainElement(HaveField("Status.Message", HavePrefix("replica "+late.name+" is heard late: "))))
	}).WithTimeout(patience).Should(Succeed())
	listed := lists.count()
	g.Eventually(lists.count).WithTimeout(patience).Should(BeNumerically(">=", listed+2*len(v.names)))
	inTime()
	end()
	v.agrees()
	v.follows(w)
	g.Expect(v.check(w, lists)).To(BeEmpty())
}

// Those who may write Leases can lead the replicas somewhere else. What answers there gets no
// credential and no request, is not believed, and the log says so. A stranger who asks a replica
// gets nothing.
func TestImpostorsOfAView(t *testing.T) {
	g := NewWithT(t)
	v := newViewed(t, "forged", 6)
	v.start()
	victim := v.start()
	v.agrees()
	authority, err := certs.NewAuthorityFor("another", time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	certificate, key, err := authority.Issue(certs.Request{Hosts: []string{"impostor"}, Peer: true, ValidFor: time.Hour})
	g.Expect(err).NotTo(HaveOccurred())
	pair, err := tls.X509KeyPair(certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	var credentials, requests atomic.Int32
	impostor := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	impostor.Config.ErrorLog = log.New(io.Discard, "", 0)
	impostor.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequestClientCert,
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			credentials.Add(int32(len(raw)))
			return nil
		},
	}
	impostor.StartTLS()
	t.Cleanup(impostor.Close)
	name := sha256.Sum256([]byte("impostor"))
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      v.name + "-peer-" + hex.EncodeToString(name[:])[:20],
			Labels:    map[string]string{"state.latchkey.dev/fleet": v.name},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new("impostor " + impostor.Listener.Addr().String()),
			LeaseDurationSeconds: new(int32(3)),
			RenewTime:            new(metav1.NowMicro()),
		},
	}
	c := admin(t)
	g.Expect(c.Create(t.Context(), lease)).To(Succeed())
	t.Cleanup(func() { _ = c.Delete(context.Background(), lease) })
	for _, r := range v.replicas {
		g.Eventually(r.log.String).WithTimeout(patience).Should(MatchRegexp(
			`"A replica of the fleet is not heard" "replica"="impostor" .*is not that member of the fleet, and got no credential`))
	}
	g.Expect(credentials.Load()).To(BeZero())
	g.Expect(requests.Load()).To(BeZero())

	// A stranger asks the replica: without a credential, and with one of another authority.
	for _, certificates := range [][]tls.Certificate{nil, {pair}} {
		stranger := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, Certificates: certificates}, //nolint:gosec // a stranger
		}}
		resp, err := stranger.Get(fmt.Sprintf("https://%s/apis/%s/v1alpha1/connections",
			v.paths[victim].listener.Addr(), v.group))
		g.Expect(err).NotTo(HaveOccurred())
		body, err := io.ReadAll(resp.Body)
		g.Expect(err).NotTo(HaveOccurred())
		_ = resp.Body.Close()
		g.Expect(resp.StatusCode).To(Equal(http.StatusUnauthorized))
		g.Expect(string(body)).NotTo(ContainSubstring("forged-"))
	}
	v.agrees()
	for _, r := range v.replicas {
		g.Expect(r.log.String()).NotTo(ContainSubstring("PRIVATE KEY"))
	}
}
