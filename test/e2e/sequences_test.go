package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

var (
	seed      = flag.Uint64("seed", 1, "seed of TestRandomSequences; a sequence that fails reports its own")
	sequences = flag.Int("sequences", testenv.Long(200, 400), "number of sequences that TestRandomSequences runs")
)

// watchNames are the names of the watches of a sequence. "content" is a content watch.
var watchNames = []string{"one", "two", "content"}

// sequence is a random series of changes to one extension, with a model of the expected state. One
// goroutine runs a sequence.
type sequence struct {
	o         *operator
	restart   func() // restarts the API server, unless the last restart is recent
	rng       *rand.Rand
	namespace string
	name      string

	// The model.
	uid      types.UID            // UID of the extension; "" if the extension does not exist
	account  string               // the ServiceAccount that the extension names
	accounts map[string]types.UID // UIDs of the ServiceAccounts that exist
	watching map[string]*unwatched
	siblings []*sibling
	past     []pastReader
	steps    []string // the steps so far, for the failure report

	*witness
}

// witness holds the observations of all sequences.
type witness struct {
	late atomic.Pointer[string] // describes a handler call after Unwatch returned
	// watched counts the registered watches. called counts those of them whose handler was called.
	// ended counts the called ones that were unwatched.
	watched, called, ended atomic.Int64
}

// unwatched records the handler calls of one registration.
type unwatched struct {
	ended atomic.Bool
	calls atomic.Int64
}

func (s *sequence) did(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

// admin retries a request of the administrator until the API server answers, for settleTimeout at
// most. NotFound and AlreadyExists count as success.
func (s *sequence) admin(operation string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", operation, err)
		case <-time.After(50 * time.Millisecond): // the API server is down for a moment
		}
	}
}

// step performs one random step.
func (s *sequence) step() error {
	switch s.rng.IntN(18) {
	case 16, 17:
		return s.toggle(s.siblings[s.rng.IntN(len(s.siblings))])
	case 0, 1:
		return s.createAccount(s.anyAccount())
	case 2, 3:
		account := s.anyAccount()
		s.did("delete ServiceAccount %s", account)
		s.accounts[account] = ""
		return s.admin("deleting a ServiceAccount", func(ctx context.Context) error {
			return admin.Delete(ctx, serviceAccount(s.namespace, account))
		})
	case 4:
		s.did("delete the extension")
		s.uid = ""
		s.watching = map[string]*unwatched{} // the watches end asynchronously
		return s.admin("deleting the extension", func(ctx context.Context) error {
			return admin.Delete(ctx, s.extension())
		})
	case 5:
		return s.create()
	case 6:
		s.account = s.anyAccount()
		s.did("name ServiceAccount %s", s.account)
		if s.uid == "" {
			return nil
		}
		return s.admin("changing the extension", func(ctx context.Context) error {
			return admin.Patch(ctx, s.extension(),
				client.RawPatch(types.MergePatchType, []byte(`{"spec":{"serviceAccount":{"name":"`+s.account+`"}}}`)))
		})
	case 7, 8, 9:
		return s.watch(watchNames[s.rng.IntN(len(watchNames))])
	case 10, 11:
		names := slices.Sorted(maps.Keys(s.watching))
		if len(names) == 0 {
			names = watchNames // unwatching an unknown name is no error
		}
		s.unwatch(names[s.rng.IntN(len(names))])
		return nil
	case 12, 13:
		return s.settle() // so that sequences reach stable states
	case 14:
		if err := s.createAccount(s.account); err != nil {
			return err
		}
		if err := s.create(); err != nil {
			return err
		}
		return s.settle()
	default:
		if s.rng.IntN(20) == 0 {
			s.did("restart the API server")
			s.restart()
		}
		return nil
	}
}

// createAccount creates a ServiceAccount, unless it exists already.
func (s *sequence) createAccount(account string) error {
	if s.accounts[account] != "" {
		return nil
	}
	s.did("create ServiceAccount %s", account)
	object := serviceAccount(s.namespace, account)
	if err := s.createObject(object); err != nil {
		return err
	}
	s.accounts[account] = object.UID
	return nil
}

// createObject creates an object and reads its UID, even if the response to the creation was lost.
func (s *sequence) createObject(object client.Object) error {
	fresh := object.DeepCopyObject().(client.Object)
	if err := s.admin("creating an object", func(ctx context.Context) error {
		return admin.Create(ctx, fresh.DeepCopyObject().(client.Object))
	}); err != nil {
		return err
	}
	return s.admin("reading an object", func(ctx context.Context) error {
		return admin.Get(ctx, client.ObjectKeyFromObject(object), object)
	})
}

func (s *sequence) anyAccount() string { return s.name + "-" + []string{"a", "b"}[s.rng.IntN(2)] }

func (s *sequence) extension() client.Object {
	e := extension(s.namespace, s.account)
	e.SetName(s.name)
	return e
}

func (s *sequence) create() error {
	if s.uid != "" {
		return nil
	}
	s.did("create the extension, naming %s", s.account)
	object := s.extension()
	if err := s.createObject(object); err != nil {
		return err
	}
	s.uid = object.GetUID()
	return nil
}

// Watch starts a source, so that the sequence also acts as a controller.
func (s *sequence) Watch(src source.Source) error { return src.Start(context.Background(), nil) }

func (s *sequence) watch(name string) error {
	if state, _ := s.o.GetConnectionState(context.Background(), key(s.name)); s.watching[name] != nil || s.uid == "" ||
		state.UID != s.uid {
		return nil // another UID belongs to an earlier extension of that name, which is being removed
	}
	u := &unwatched{}
	called := func() {
		if u.calls.Add(1) == 1 {
			s.called.Add(1)
		}
		if u.ended.Load() {
			message := fmt.Sprintf("a handler of watch %q was called after its Unwatch had returned", name)
			s.late.Store(&message)
		}
	}
	handler := handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, workqueue.TypedRateLimitingInterface[ctrl.Request]) {
			called()
		},
		UpdateFunc: func(context.Context, event.UpdateEvent, workqueue.TypedRateLimitingInterface[ctrl.Request]) {
			called()
		},
	}
	var err error
	if name == "content" {
		objects := []client.Object{configMap(s.namespace, "any")}
		if s.rng.IntN(2) == 0 {
			objects = append(objects,
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "forbidden"}})
		}
		err = s.o.WatchContent(context.Background(), key(s.name),
			clustercache.NewContentWatch(clustercache.ContentWatchOptions{
				Name:         name,
				Watcher:      s,
				Objects:      objects,
				EventHandler: handler,
			}))
	} else {
		err = s.o.Watch(context.Background(), key(s.name), clustercache.NewWatcher(clustercache.WatcherOptions{
			Name:    name,
			Watcher: s,
			Kind:    &corev1.ConfigMap{},
			Scope: clustercache.Scope{
				Namespace: s.namespace,
			},
			EventHandler: handler,
		}))
	}
	s.did("watch %s: %v", name, err)
	if err != nil {
		return nil // settle checks later why the extension is not connected
	}
	s.watched.Add(1)
	s.watching[name] = u
	if s.rng.IntN(2) == 0 || s.accounts[s.account] == "" {
		return nil
	}
	for deadline := time.Now().Add(settleTimeout); u.calls.Load() == 0; <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("watch %q is registered, but its handler was not called: %s", name, s.wrong())
		}
	}
	return nil
}

func (s *sequence) unwatch(name string) {
	u := s.watching[name]
	s.o.Unwatch(context.Background(), key(s.name), name)
	if u != nil {
		u.ended.Store(true)
		delete(s.watching, name)
		if u.calls.Load() > 0 {
			s.ended.Add(1)
		}
	}
	s.did("unwatch %s", name)
}

// settleTimeout is longer than patience. Informers, including the manager's, back off from an API
// server that restarts again and again. The backoff grows to 30 s, which jitter may double.
const settleTimeout = 3 * patience

// settle waits until the connection matches the model. After settleTimeout settle returns the
// difference as an error.
func (s *sequence) settle() error {
	deadline := time.Now().Add(settleTimeout)
	for {
		wrong := s.wrong()
		if wrong == "" {
			wrong = s.wrongReads()
		}
		if wrong == "" {
			s.did("the connection matches the model")
			return nil
		}
		if time.Now().After(deadline) || s.late.Load() != nil {
			return fmt.Errorf("%s", wrong)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// wrong describes the first difference between the connection and the model. Without a difference
// wrong returns "".
func (s *sequence) wrong() string {
	state, known := s.o.GetConnectionState(context.Background(), key(s.name))
	switch {
	case s.uid == "" && known:
		return "the extension is known, but does not exist"
	case s.uid == "":
		return s.wrongSiblings()
	case !known:
		return "the extension exists, but is not known"
	case state.UID != s.uid:
		return fmt.Sprintf("the extension has UID %s, not %s", state.UID, s.uid)
	}
	for _, w := range state.Watches {
		if s.watching[w.Name] == nil {
			return fmt.Sprintf("watch %q is registered, but should not be", w.Name)
		}
	}
	for name := range s.watching {
		if !slices.ContainsFunc(state.Watches, func(w clustercache.WatchState) bool { return w.Name == name }) {
			return fmt.Sprintf("watch %q is not registered", name)
		}
	}
	if wrong := s.wrongIdentity(s.name, state, s.account); wrong != "" {
		return wrong
	}
	return s.wrongSiblings()
}

// wrongIdentity describes how a connection differs from that of the account, "" if it does not.
func (s *sequence) wrongIdentity(name string, state clustercache.ConnectionState, account string) string {
	uid := s.accounts[account]
	switch {
	case uid == "" && state.Phase == clustercache.PhaseDisconnected &&
		state.Reason == clustercache.ReasonServiceAccountNotFound:
		return ""
	case uid != "" && state.Phase == clustercache.PhaseConnected && state.Identity.UID == uid &&
		state.Identity.Username == "system:serviceaccount:"+s.namespace+":"+account:
		return ""
	}
	return fmt.Sprintf("%s is %s %s as %q with UID %q (%s); it names ServiceAccount %s of %v", name,
		state.Phase, state.Reason, state.Identity.Username, state.Identity.UID, state.Message, account, s.accounts)
}

// run runs the sequence. At the end the extension exists, so that sources receive a last state.
func (s *sequence) run() error {
	for _, f := range []func() error{func() error { return s.createAccount(s.account) }, s.create, s.settle} {
		if err := f(); err != nil {
			return err
		}
	}
	for range 4 + s.rng.IntN(9) {
		if err := s.step(); err != nil {
			return err
		}
		if late := s.late.Load(); late != nil {
			return fmt.Errorf("%s", *late)
		}
	}
	if err := s.create(); err != nil {
		return err
	}
	return s.settle()
}

// lastSaid keeps the last state of each extension that a source received.
type lastSaid struct {
	mu   sync.Mutex
	said map[string]string // guarded by mu
}

// saying describes a state as far as sources must have received it. Sources receive no event when a
// connect begins. Until the connect ends, the extension counts as not connected, for the reason
// that sources received last.
func saying(state clustercache.ConnectionState, known bool) string {
	if !known {
		return "gone"
	}
	if state.Phase == clustercache.PhaseConnecting {
		state.Phase = clustercache.PhaseDisconnected
	}
	return fmt.Sprintf("%s %s %s %d", state.Phase, state.Reason, state.Identity.UID, state.Epoch)
}

func (l *lastSaid) of(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said[name]
}

// hear starts a source that records the states that it receives. With slow, the source takes at
// least 5 ms for each event.
func hear(t *testing.T, o *operator, slow bool) *lastSaid {
	t.Helper()
	l := &lastSaid{said: map[string]string{}}
	queue := priorityqueue.New[reconcile.Request]("test")
	t.Cleanup(queue.ShutDown)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	NewWithT(t).Expect(o.GetExtensionSource("test", func(ctx context.Context, extension client.Object) []ctrl.Request {
		if slow {
			<-time.After(5 * time.Millisecond)
		}
		state, known := o.GetConnectionState(ctx, client.ObjectKeyFromObject(extension))
		l.mu.Lock()
		defer l.mu.Unlock()
		l.said[extension.GetName()] = saying(state, known)
		return nil
	}).Start(ctx, queue)).To(Succeed())
	return l
}

// TestRandomSequences runs random sequences of changes to extensions against a model. Many
// sequences run at the same time, while the API server restarts now and then. Sources receive the
// last state of each extension. No handler is called after its Unwatch returned. At the end nothing
// is left behind.
func TestRandomSequences(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	// All ServiceAccounts of the namespace may watch ConfigMaps there.
	create(t,
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "watch"},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}},
			},
		})
	create(t,
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "watch"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "watch"},
			Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:" + ns}},
		})
	readers := roleBinding(ns, "readers")
	readers.Subjects = nil
	for i := range *sequences {
		readers.Subjects = append(readers.Subjects,
			rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: fmt.Sprintf("seq-%04d-a", i)})
	}
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "readers"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		},
	})
	create(t, readers)
	ticking := configMap(ns, "ticking")
	create(t, ticking)
	o := startOperator(t, clustercache.Options{Metrics: clustercache.MetricsOptions{PerExtension: true}})
	tenant(t, ns, "first")
	o.waitConnected(t, "first") // the operator has started
	g.Expect(admin.Delete(t.Context(), extension(ns, "first"))).To(Succeed())
	g.Eventually(o.known("first")).WithTimeout(patience).Should(BeFalse())
	early, slow := hear(t, o, false), hear(t, o, true)
	before := runtime.NumGoroutine()

	// A ConfigMap changes all the time, so that handlers are called all the time.
	ctx, stop := context.WithCancel(context.Background())
	var ticker sync.WaitGroup
	t.Cleanup(func() { stop(); ticker.Wait() })
	ticker.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			// errors are expected while the API server is down
			_ = admin.Patch(ctx, ticking,
				client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"data":{"tick":"%d"}}`, i)))
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	})

	var restartMu sync.Mutex
	var started atomic.Int64
	restarts := 0
	restart := func() {
		restartMu.Lock()
		defer restartMu.Unlock()
		if restarts > int(started.Load())/250 {
			return
		}
		restarts++
		if err := cp.KillAPIServer(context.Background()); err != nil {
			t.Error(err)
		}
		if err := cp.StartAPIServer(context.Background()); err != nil {
			t.Error(err)
		}
	}
	seen := &witness{}
	var group errgroup.Group
	group.SetLimit(40)
	all := make([]*sequence, *sequences)
	begin := time.Now()
	for i := range all {
		s := &sequence{
			o:         o,
			restart:   restart,
			rng:       rand.New(rand.NewPCG(*seed, uint64(i))),
			namespace: ns,
			name:      fmt.Sprintf("seq-%04d", i),
			accounts:  map[string]types.UID{},
			watching:  map[string]*unwatched{},
			witness:   seen,
		}
		s.account = s.anyAccount()
		s.addSiblings()
		all[i] = s
		group.Go(func() error {
			started.Add(1)
			if err := s.run(); err != nil {
				return fmt.Errorf("seed %d, sequence %d: %w\n  %s", *seed, i, err, strings.Join(s.steps, "\n  "))
			}
			return nil
		})
	}
	t.Cleanup(func() { // also if the test fails
		for _, s := range all {
			for _, object := range append(s.siblingObjects(), s.extension()) {
				if err := s.admin("cleaning up", func(ctx context.Context) error { return admin.Delete(ctx, object) }); err != nil {
					t.Error(err)
				}
			}
		}
	})
	g.Expect(group.Wait()).To(Succeed())
	t.Logf("%d sequences in %s, with %d restarts of the API server; handlers of %d watches: %d were called, %d "+
		"of these were unwatched", len(all), time.Since(begin).Round(time.Second), restarts,
		seen.watched.Load(), seen.called.Load(), seen.ended.Load())
	g.Expect(seen.called.Load()).To(BeNumerically(">=", len(all)/3), "enough handlers are called")
	g.Expect(seen.ended.Load()).To(BeNumerically(">=", len(all)/20))
	g.Expect(restarts).To(BeNumerically(">=", (len(all)+200)/400))

	o.filters += restarts // the manager's own watch of metadata may leave a goroutine behind at each restart

	// Every source has received the last states, including a source that starts late.
	sources := map[string]*lastSaid{"early": early, "slow": slow, "late": hear(t, o, false)}
	staleRecord := func() string {
		for source, recorder := range sources {
			for _, s := range all {
				state, known := o.GetConnectionState(context.Background(), key(s.name))
				if current, recorded := saying(state, known), recorder.of(s.name); current != recorded {
					return fmt.Sprintf("the %s source last recorded extension %s as %q; its state is %q", source, s.name,
						recorded, current)
				}
			}
		}
		return ""
	}
	g.Eventually(staleRecord).WithTimeout(patience).Should(BeEmpty())
	for _, s := range all {
		for name := range s.watching {
			s.unwatch(name)
		}
	}
	// Deleted extensions leave nothing behind.
	for _, s := range all {
		for _, object := range append(s.siblingObjects(), s.extension()) {
			g.Expect(s.admin("deleting an extension", func(ctx context.Context) error {
				return admin.Delete(ctx, object)
			})).To(Succeed())
		}
	}
	g.Eventually(func() int { return len(o.ListConnectionStates(context.Background())) }).WithTimeout(patience).
		Should(BeZero())
	g.Eventually(staleRecord).WithTimeout(patience).Should(BeEmpty(), "sources also receive the deletions")
	if late := seen.late.Load(); late != nil {
		t.Error(*late)
	}
	stop()
	ticker.Wait()
	remaining := series(t)
	g.Expect(remaining).
		NotTo(
			HaveKey(Or(HavePrefix("latchkey_connections"), HavePrefix("latchkey_informers"),
				HavePrefix("latchkey_extension_"))))
	g.Expect(remaining).To(And(HaveKeyWithValue("latchkey_watches", 0.0), HaveKeyWithValue("latchkey_objects", 0.0)))
	g.Eventually(runtime.NumGoroutine).WithTimeout(patience).
		Should(BeNumerically("<=", before+25), "only the test and the manager keep connections to the API server")
}
