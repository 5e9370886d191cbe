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
)

var (
	seed      = flag.Uint64("seed", 1, "of TestRandomSequences; a sequence that fails names its own")
	sequences = flag.Int("sequences", 1000, "how many TestRandomSequences runs")
)

// watchNames are the names of the watches of a sequence. "content" is a content.
var watchNames = []string{"one", "two", "content"}

// sequence is one extension's random life and the model of it. One goroutine drives it.
type sequence struct {
	o         *operator
	restart   func() // the API server, if that was not done lately
	rng       *rand.Rand
	namespace string
	name      string

	// The model.
	uid      types.UID            // of the extension, "" if it does not exist
	account  string               // that the extension names
	accounts map[string]types.UID // ServiceAccounts that exist
	watching map[string]*unwatched
	steps    []string // what was done, for the report

	*witness
}

// witness is what all sequences saw together.
type witness struct {
	late atomic.Pointer[string] // a handler that was called after its Unwatch returned
	// watches that were registered, of those that were called, and of these that were unwatched
	watched, called, ended atomic.Int64
}

// unwatched is the handler of one registration.
type unwatched struct {
	ended atomic.Bool
	calls atomic.Int64
}

func (s *sequence) did(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

// admin retries what the administrator does until the API server answers.
func (s *sequence) admin(what string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(50 * time.Millisecond): // it is down for a moment
		}
	}
}

// step does something at random.
func (s *sequence) step() error {
	switch s.rng.IntN(16) {
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
		s.watching = map[string]*unwatched{} // they end, some time soon
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
			names = watchNames // which is no error
		}
		return s.unwatch(names[s.rng.IntN(len(names))])
	case 12, 13:
		return s.settle() // so that sequences get somewhere
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

// createAccount creates a ServiceAccount that does not exist.
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

// createObject creates an object and reads its UID, also if the answer to the creation was lost.
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

// Watch starts a source: the sequence is a controller too.
func (s *sequence) Watch(src source.Source) error { return src.Start(context.Background(), nil) }

func (s *sequence) watch(name string) error {
	if state, _ := s.o.GetConnectionState(context.Background(), key(s.name)); s.watching[name] != nil || s.uid == "" ||
		state.UID != s.uid {
		return nil // the last is of an extension of that name that is going
	}
	u := &unwatched{}
	called := func() {
		if u.calls.Add(1) == 1 {
			s.called.Add(1)
		}
		if u.ended.Load() {
			what := fmt.Sprintf("a handler of watch %q was called after its Unwatch had returned", name)
			s.late.Store(&what)
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
				Name: name, Watcher: s, Objects: objects, EventHandler: handler,
			}))
	} else {
		err = s.o.Watch(context.Background(), key(s.name), clustercache.NewWatcher(clustercache.WatcherOptions{
			Name: name, Watcher: s, Kind: &corev1.ConfigMap{}, Scope: clustercache.Scope{
				Namespace: s.namespace,
			}, EventHandler: handler,
		}))
	}
	s.did("watch %s: %v", name, err)
	if err != nil {
		return nil // why it is not connected is checked when things have settled
	}
	s.watched.Add(1)
	s.watching[name] = u
	if s.rng.IntN(2) == 0 || s.accounts[s.account] == "" {
		return nil
	}
	for deadline := time.Now().Add(settlePatience); u.calls.Load() == 0; <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("watch %q is registered, and its handler is not called: %s", name, s.wrong())
		}
	}
	return nil
}

func (s *sequence) unwatch(name string) error {
	u := s.watching[name]
	err := s.o.Unwatch(context.Background(), key(s.name), name)
	if u != nil {
		u.ended.Store(true)
		delete(s.watching, name)
		if u.calls.Load() > 0 {
			s.ended.Add(1)
		}
	}
	s.did("unwatch %s", name)
	return err
}

// settlePatience is more than patience: informers, the manager's too, back off from an API server
// that restarts again and again, in the end to 30 s, which jitter may double.
const settlePatience = 3 * patience

// settle waits until the connection is what the model says.
func (s *sequence) settle() error {
	deadline := time.Now().Add(settlePatience)
	for {
		wrong := s.wrong()
		if wrong == "" {
			s.did("it is as it should be")
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s", wrong)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// wrong is what is not as the model says, "" if nothing is.
func (s *sequence) wrong() string {
	state, known := s.o.GetConnectionState(context.Background(), key(s.name))
	switch {
	case s.uid == "" && known:
		return "it is known, and does not exist"
	case s.uid == "":
		return ""
	case !known:
		return "it exists, and is not known"
	case state.UID != s.uid:
		return fmt.Sprintf("it has UID %s, not %s", state.UID, s.uid)
	}
	for _, w := range state.Watches {
		if s.watching[w.Name] == nil {
			return fmt.Sprintf("watch %q is registered", w.Name)
		}
	}
	for name := range s.watching {
		if !slices.ContainsFunc(state.Watches, func(w clustercache.WatchState) bool { return w.Name == name }) {
			return fmt.Sprintf("watch %q is not registered", name)
		}
	}
	uid := s.accounts[s.account]
	switch {
	case uid == "" && state.Phase == clustercache.Disconnected && state.Reason == clustercache.ServiceAccountNotFound:
		return ""
	case uid != "" && state.Phase == clustercache.Connected && state.Identity.UID == uid &&
		state.Identity.Username == "system:serviceaccount:"+s.namespace+":"+s.account:
		return ""
	}
	return fmt.Sprintf("it is %s %s as %q with UID %q (%s); it names %s, of %v", state.Phase, state.Reason,
		state.Identity.Username, state.Identity.UID, state.Message, s.account, s.accounts)
}

// run runs the sequence. At the end the extension exists, so that there is a last state to be told.
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

// lastSaid keeps what a source was last told of each extension.
type lastSaid struct {
	mu   sync.Mutex
	said map[string]string // guarded by mu
}

// saying describes a state as far as sources must have seen it. That a connect is under way is not
// told: until it ends the extension is not connected, for the reason that was told.
func saying(state clustercache.ConnectionState, known bool) string {
	if !known {
		return "gone"
	}
	if state.Phase == clustercache.Connecting {
		state.Phase = clustercache.Disconnected
	}
	return fmt.Sprintf("%s %s %s %d", state.Phase, state.Reason, state.Identity.UID, state.Generation)
}

func (l *lastSaid) of(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said[name]
}

// hear starts a source that notes what it is told, slowly if it is told to be slow.
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

// TestRandomSequences runs random lives of extensions against a model, many at a time, while the
// API server restarts now and then. Sources see the last state of each, no handler is called after
// its Unwatch returned, and in the end nothing is left.
func TestRandomSequences(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	// All ServiceAccounts of the namespace may watch ConfigMaps there.
	create(t,
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "watch"},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}},
			}})
	create(t,
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "watch"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "watch"},
			Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:" + ns}}})
	ticking := configMap(ns, "ticking")
	create(t, ticking)
	o := startOperator(t, clustercache.Options{Metrics: clustercache.MetricsOptions{PerExtension: true}})
	tenant(t, ns, "first")
	o.waitConnected(t, "first") // so it has started
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
			// also while the server is down
			_ = admin.Patch(ctx, ticking,
				client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"data":{"tick":"%d"}}`, i)))
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	})

	var restarting sync.Mutex
	var started atomic.Int64
	restarts := 0
	restart := func() {
		restarting.Lock()
		defer restarting.Unlock()
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
	var running errgroup.Group
	running.SetLimit(40)
	all := make([]*sequence, *sequences)
	begun := time.Now()
	for i := range all {
		s := &sequence{o: o, restart: restart, rng: rand.New(rand.NewPCG(*seed, uint64(i))), namespace: ns,
			name:     fmt.Sprintf("seq-%04d", i),
			accounts: map[string]types.UID{}, watching: map[string]*unwatched{}, witness: seen}
		s.account = s.anyAccount()
		all[i] = s
		running.Go(func() error {
			started.Add(1)
			if err := s.run(); err != nil {
				return fmt.Errorf("seed %d, sequence %d: %w\n  %s", *seed, i, err, strings.Join(s.steps, "\n  "))
			}
			return nil
		})
	}
	t.Cleanup(func() { // also if the test fails
		for _, s := range all {
			if err := s.admin("cleaning up", func(ctx context.Context) error {
				return admin.Delete(ctx, s.extension())
			}); err != nil {
				t.Error(err)
			}
		}
	})
	g.Expect(running.Wait()).To(Succeed())
	t.Logf("%d sequences in %s, with %d restarts of the API server; of %d watches %d were called, and %d of them "+
		"unwatched", len(all), time.Since(begun).Round(time.Second), restarts,
		seen.watched.Load(), seen.called.Load(), seen.ended.Load())
	g.Expect(seen.called.Load()).To(BeNumerically(">=", len(all)/3), "the sequences do what they are for")
	g.Expect(seen.ended.Load()).To(BeNumerically(">=", len(all)/20))
	g.Expect(restarts).To(BeNumerically(">=", len(all)/500))

	o.filters += restarts // the manager's own watch of metadata may leave one behind each time

	// Everybody has been told the last state; one who comes late too.
	sources := map[string]*lastSaid{"early": early, "slow": slow, "late": hear(t, o, false)}
	everybodyWasTold := func() string {
		for source, heard := range sources {
			for _, s := range all {
				state, known := o.GetConnectionState(context.Background(), key(s.name))
				if is, told := saying(state, known), heard.of(s.name); is != told {
					return fmt.Sprintf("the %s source was last told that %s is %q; it is %q", source, s.name, told, is)
				}
			}
		}
		return ""
	}
	g.Eventually(everybodyWasTold).WithTimeout(patience).Should(BeEmpty())
	for _, s := range all {
		for name := range s.watching {
			g.Expect(s.unwatch(name)).To(Succeed())
		}
	}
	// What is removed leaves nothing.
	for _, s := range all {
		g.Expect(s.admin("deleting the extension", func(ctx context.Context) error {
			return admin.Delete(ctx, s.extension())
		})).To(Succeed())
	}
	g.Eventually(func() int { return len(o.ListConnectionStates(context.Background())) }).WithTimeout(patience).
		Should(BeZero())
	g.Eventually(everybodyWasTold).WithTimeout(patience).Should(BeEmpty(), "also that they are gone")
	if late := seen.late.Load(); late != nil {
		t.Error(*late)
	}
	stop()
	ticker.Wait()
	left := series(t)
	g.Expect(left).
		NotTo(
			HaveKey(Or(HavePrefix("latchkey_connections"), HavePrefix("latchkey_informers"),
				HavePrefix("latchkey_extension_"))))
	g.Expect(left).To(And(HaveKeyWithValue("latchkey_watches", 0.0), HaveKeyWithValue("latchkey_objects", 0.0)))
	g.Eventually(runtime.NumGoroutine).WithTimeout(patience).
		Should(BeNumerically("<=", before+25), "connections to the API server are the test's and the manager's")
}
