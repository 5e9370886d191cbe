package scopedcache_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

var (
	fuzzDuration = flag.Duration("fuzz-rbac", 0, "how long to run sequences of further seeds; make fuzz-rbac sets it")
	fuzzSeed     = flag.Uint64("seed", 0, "run only the sequence of this seed")
)

const (
	// bound is how long after a change of permissions the cache may still use the old ones. bound
	// covers AccessReviewInterval, the time until the cache accepts a denial, and a generous margin
	// for a loaded machine.
	bound = 10 * time.Second
	// restartingSeed is the seed of a recorded sequence that always restarts the API server.
	restartingSeed = 2
	// readTimeout is the ReadTimeout of the caches.
	readTimeout = 5 * time.Second
)

// TestRandomPermissions runs random grants, revocations, creations, deletions, reads, watches and
// restarts of the API server. The test compares the results with a model of each user's
// permissions. Later than bound after a change, and after a restart, no read succeeds without
// permission, and no read with permission is forbidden. Handlers with permission have received
// every object. No call hangs.
func TestRandomPermissions(t *testing.T) {
	if *fuzzSeed != 0 {
		newSequence(t, *fuzzSeed).run()
		return
	}
	deniedReads, repeatedReads := 0, 0
	seeds := recordedSeeds(t)
	if testenv.Long(true, false) {
		seeds = []uint64{restartingSeed, seeds[len(seeds)-1]} // which found something last
	}
	for _, seed := range seeds {
		s := newSequence(t, seed)
		s.run()
		deniedReads += s.deniedReads
		repeatedReads += s.repeatedReads
	}
	t.Logf("%d reads without a permission that was revoked more than the bound ago, "+
		"%d reads compared with an earlier read", deniedReads, repeatedReads)
	NewWithT(t).Expect(deniedReads).To(BeNumerically(">", 2),
		"reads without a permission that was revoked more than the bound ago")
	began := time.Now()
	for seed, n := uint64(began.UnixNano()), 1; time.Since(began) < *fuzzDuration; seed, n = seed+1, n+1 {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { newSequence(t, seed).run() }) {
			t.Fatalf(
				"sequence %d failed; to reproduce: go test -race ./test/e2e/scopedcache -run TestRandomPermissions -seed %d", n,
				seed)
		}
		if n%10 == 0 {
			fmt.Printf("%d sequences in %s without a failure\n", n, time.Since(began).Round(time.Second))
		}
	}
}

func recordedSeeds(t *testing.T) (seeds []uint64) {
	t.Helper()
	file, err := os.Open("testdata/seeds.txt")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		word, _, _ := strings.Cut(lines.Text(), " ")
		if seed, err := strconv.ParseUint(word, 10, 64); err == nil {
			seeds = append(seeds, seed)
		}
	}
	NewWithT(t).Expect(seeds).NotTo(BeEmpty())
	return seeds
}

// fuzzKinds are the kinds that the sequences use.
var fuzzKinds = []struct {
	resource string
	object   func(namespace, name string) client.Object
	list     func() client.ObjectList
}{
	{"configmaps", func(ns, name string) client.Object { return configMap(ns, name) }, func() client.ObjectList {
		return &corev1.ConfigMapList{}
	}},
	{"secrets", func(ns, name string) client.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	}, func() client.ObjectList { return &corev1.SecretList{} }},
}

// permission is the model of a grant.
type permission struct {
	grant   *roleGrant // nil before the first grant
	granted bool
	changed time.Time
}

// actor is a user with a cache, and the model of its permissions.
type actor struct {
	user        *user
	cache       *runningCache
	options     scopedcache.Options
	permissions map[string]*permission // by resource and namespace; "" is all namespaces
	holds       []*fuzzHold
}

type fuzzHold struct {
	kind   int
	scope  scopedcache.Scope
	handle *scopedcache.Handle
	ledger *ledger
}

type sequence struct {
	t           *testing.T
	g           *WithT
	random      *rand.Rand
	seed        uint64
	namespaces  []string
	sets        *rand.Rand      // another one, so that recorded seeds keep their sequences
	labelled    map[string]bool // the namespaces with the label of this sequence
	actors      []*actor
	objects     map[string]client.Object // by kind, namespace and name
	lastRestart time.Time
	steps       []string // for the failure message
	deniedReads int      // reads without a permission that was revoked more than bound ago
	// confirmed has the time of the last change of a permission if a read since then got the result
	// of the model, by user, kind and namespace.
	confirmed     map[string]time.Time
	repeatedReads int // reads that were compared with an earlier read
}

func newSequence(t *testing.T, seed uint64) *sequence {
	t.Helper()
	s := &sequence{
		t:         t,
		g:         NewWithT(t),
		random:    rand.New(rand.NewPCG(seed, seed)),
		seed:      seed,
		objects:   map[string]client.Object{},
		labelled:  map[string]bool{},
		sets:      rand.New(rand.NewPCG(seed, seed+1)),
		confirmed: map[string]time.Time{},
	}
	for range 3 {
		s.namespaces = append(s.namespaces, createNamespace(t))
	}
	for range 2 {
		a := &actor{user: newUser(t), permissions: map[string]*permission{}}
		a.options = scopedcache.Options{
			AccessReviewInterval: 300 * time.Millisecond,
			ReadTimeout:          readTimeout,
			PerNamespace:         s.chance(2),
			WatchRBAC:            s.chance(2),
			PollWithoutWatch:     s.chance(4),
		}
		if s.chance(3) {
			a.options.IdleTimeout = 500 * time.Millisecond
		}
		if a.options.WatchRBAC {
			a.options.AccessReviewInterval = time.Second
			a.user.grantRule(t, "",
				rbacv1.PolicyRule{
					APIGroups: []string{rbacv1.GroupName},
					Resources: []string{"*"},
					Verbs:     []string{"list", "watch"},
				})
		}
		a.user.grant(t, "", "namespaces", "list", "watch") // for sets of labels
		s.actors = append(s.actors, a)
	}
	for _, a := range s.actors {
		a.cache = a.user.start(t, a.options, cache.Options{})
	}
	return s
}

func (s *sequence) chance(oneIn int) bool { return s.random.IntN(oneIn) == 0 }

func (s *sequence) note(format string, args ...any) {
	s.steps = append(s.steps, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// fail ends the test with the seed and the steps of the sequence.
func (s *sequence) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s, after\n%s", s.seed, fmt.Sprintf(format, args...), strings.Join(s.steps, "\n"))
}

func (s *sequence) run() {
	watchdog := time.AfterFunc(10*time.Minute, func() { // ten times the usual duration
		debug.SetTraceback("all")
		panic(fmt.Sprintf("the sequence of seed %d hangs", s.seed))
	})
	defer watchdog.Stop()
	defer func() {
		for _, a := range s.actors {
			a.cache.stop() // stop all caches before the cleanup checks for leaked goroutines
		}
	}()
	for range 80 {
		a := s.actors[s.random.IntN(len(s.actors))]
		if s.sets.IntN(10) == 0 {
			s.changeLabel()
		}
		switch s.random.IntN(20) {
		case 0, 1, 2, 3:
			s.changePermission(a)
		case 4, 5, 6, 7, 8:
			s.changeObject()
		case 9, 10:
			s.hold(a)
		case 11:
			s.release(a)
		case 12:
			if s.chance(12) || s.seed == restartingSeed && s.lastRestart.IsZero() {
				s.restart()
			}
		case 13:
			<-time.After(time.Duration(s.random.IntN(1500)) * time.Millisecond)
		default:
			s.read(a)
		}
	}
	s.settle()
	for _, a := range s.actors {
		for len(a.holds) > 0 {
			s.release(a)
		}
	}
}

func (s *sequence) pickNamespace(oneInAll int) string {
	if s.chance(oneInAll) {
		return ""
	}
	return s.namespaces[s.random.IntN(len(s.namespaces))]
}

func (s *sequence) changePermission(a *actor) {
	kind, ns := s.random.IntN(len(fuzzKinds)), s.pickNamespace(5)
	key := fuzzKinds[kind].resource + "/" + ns
	r := a.permissions[key]
	switch {
	case r == nil:
		r = &permission{grant: a.user.grant(s.t, ns, fuzzKinds[kind].resource, "list", "watch"), granted: true}
		a.permissions[key] = r
	case r.granted:
		r.grant.revoke(s.t)
		r.granted = false
	default:
		r.grant.restore(s.t)
		r.granted = true
	}
	r.changed = time.Now()
	s.note("changed the permission of %s to list and watch %s: %t", a.user.name, key, r.granted)
}

// access returns whether the user has permission to read, and when that permission last changed.
func (a *actor) access(kind int, namespace string) (granted bool, since time.Time) {
	for _, scope := range slices.Compact([]string{namespace, ""}) {
		if r := a.permissions[fuzzKinds[kind].resource+"/"+scope]; r != nil {
			granted = granted || r.granted
			if r.changed.After(since) {
				since = r.changed // a change of either grant may have changed the result
			}
		}
	}
	return granted, since
}

func (s *sequence) changeObject() {
	kind, ns, name := s.random.IntN(len(fuzzKinds)), s.pickNamespace(1<<30), fmt.Sprint("o", s.random.IntN(5))
	key := fmt.Sprint(kind, ns, name)
	existing := s.objects[key]
	switch {
	case existing == nil:
		created := fuzzKinds[kind].object(ns, name)
		s.g.Expect(admin.Create(context.Background(), created)).To(Succeed())
		s.objects[key] = created
		s.note("created %s %s/%s", fuzzKinds[kind].resource, ns, name)
	case s.chance(2):
		s.g.Expect(admin.Delete(context.Background(), existing)).To(Succeed())
		delete(s.objects, key)
		s.note("deleted %s %s/%s", fuzzKinds[kind].resource, ns, name)
	default:
		existing.SetLabels(map[string]string{"n": fmt.Sprint(s.random.IntN(1 << 20))})
		s.g.Expect(admin.Update(context.Background(), existing)).To(Succeed())
		s.note("updated %s %s/%s", fuzzKinds[kind].resource, ns, name)
	}
}

func (s *sequence) read(a *actor) {
	kind, ns := s.random.IntN(len(fuzzKinds)), s.pickNamespace(4)
	list := fuzzKinds[kind].list()
	began := time.Now()
	err := a.cache.List(context.Background(), list, client.InNamespace(ns))
	took := time.Since(began)
	s.note("%s read %s/%s: %v after %s", a.user.name, fuzzKinds[kind].resource, ns, err, took.Round(time.Millisecond))
	s.judge(a, kind, ns, list, err, began, took)
}

// judge compares the result of a read with the model, and fails the test if they differ.
func (s *sequence) judge(a *actor, kind int, ns string, list client.ObjectList, err error, began time.Time,
	took time.Duration) {
	s.t.Helper()
	granted, since := a.access(kind, ns)
	// No cache can learn of a change while the API server is down.
	settled := began.Sub(since) > bound && began.Sub(s.lastRestart) > bound
	if settled && !granted && !since.IsZero() {
		s.deniedReads++
	}
	restarting := time.Since(s.lastRestart) < 30*time.Second
	// After a read gets the result of the model, all reads get it until the next change of
	// permissions, even within the bound. (Reads after a restart are exempt: a new informer accepts
	// a first denial, also that of an API server in its first moments.)
	key := fmt.Sprint(a.user.name, kind, ns)
	if last, ok := s.confirmed[key]; ok && last.Equal(since) && !restarting {
		s.repeatedReads++
		if (err == nil) != granted {
			s.fail("%s read %s/%s and got %v, but an earlier read since the permission changed (%t) got another result",
				a.user.name, fuzzKinds[kind].resource, ns, err, granted)
		}
	}
	if err == nil && granted || apierrors.IsForbidden(err) && !granted {
		s.confirmed[key] = since
	}
	switch {
	case took > readTimeout+5*time.Second:
		s.fail("a read took %s", took)
	case err == nil && !granted && settled:
		s.fail("%s read %s/%s and got %d objects, %s after the permission was revoked", a.user.name,
			fuzzKinds[kind].resource, ns, meta.LenList(list), time.Since(since))
	case apierrors.IsForbidden(err) && granted && settled:
		s.fail("%s read %s/%s and got Forbidden, %s after the permission was granted: %v", a.user.name,
			fuzzKinds[kind].resource, ns, time.Since(since), err)
	case err != nil && !apierrors.IsForbidden(err) && !restarting:
		s.fail("%s read %s/%s and got an unexpected error: %v", a.user.name, fuzzKinds[kind].resource, ns, err)
	}
	if err == nil && ns != "" {
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			if item.(client.Object).GetNamespace() != ns {
				s.fail("%s read in namespace %s and got an object of namespace %s", a.user.name, ns,
					item.(client.Object).GetNamespace())
			}
			return nil
		})
	}
}

func (s *sequence) hold(a *actor) {
	if len(a.holds) > 6 {
		return
	}
	h := &fuzzHold{kind: s.random.IntN(len(fuzzKinds)), scope: s.pickScope(s.pickNamespace(4)), ledger: newLedger()}
	h.ledger.allowReadds = true
	var err error
	h.handle, err = a.cache.Hold(context.Background(), fuzzKinds[h.kind].object("", ""),
		h.scope,
		scopedcache.HoldOptions{Dependent: types.UID(fmt.Sprint("dependent-", s.random.IntN(1<<30)))})
	s.g.Expect(err).NotTo(HaveOccurred())
	_, err = h.handle.AddEventHandler(h.ledger)
	s.g.Expect(err).NotTo(HaveOccurred())
	a.holds = append(a.holds, h)
	s.note("%s called Hold for %s of %s", a.user.name, fuzzKinds[h.kind].resource, h.scope)
}

func (s *sequence) release(a *actor) {
	if len(a.holds) == 0 {
		return
	}
	i := s.random.IntN(len(a.holds))
	h := a.holds[i]
	a.holds = slices.Delete(a.holds, i, i+1)
	h.handle.Release()
	s.note("%s released %s of %s", a.user.name, fuzzKinds[h.kind].resource, h.scope)
	if violations := h.ledger.violations(); len(violations) > 0 {
		s.fail("the handler of %s of %s received contradictory events: %v", fuzzKinds[h.kind].resource, h.scope,
			violations)
	}
}

func (s *sequence) restart() {
	s.lastRestart = time.Now()
	s.g.Expect(cp.KillAPIServer(context.Background())).To(Succeed())
	s.g.Expect(cp.StartAPIServer(context.Background())).To(Succeed())
	s.lastRestart = time.Now()
	s.note("restarted the API server")
}

// settle waits until bound has passed since the last change. Then the caches must agree with the
// model: users with permission read all objects, and their handlers have received them. All other
// reads return Forbidden.
func (s *sequence) settle() {
	s.note("settling")
	last := s.lastRestart
	for _, a := range s.actors {
		for _, r := range a.permissions {
			if r.changed.After(last) {
				last = r.changed
			}
		}
	}
	<-time.After(time.Until(last.Add(bound + time.Second)))
	for _, a := range s.actors {
		for kind := range fuzzKinds {
			for _, ns := range append([]string{""}, s.namespaces...) {
				list := fuzzKinds[kind].list()
				began := time.Now()
				err := a.cache.List(context.Background(), list, client.InNamespace(ns))
				s.judge(a, kind, ns, list, err, began, time.Since(began))
			}
		}
	}
	for _, a := range s.actors {
		for kind := range fuzzKinds {
			for _, ns := range append([]string{""}, s.namespaces...) {
				granted, _ := a.access(kind, ns)
				s.eventually(func() error {
					list := fuzzKinds[kind].list()
					err := a.cache.List(context.Background(), list, client.InNamespace(ns))
					if !granted {
						if apierrors.IsForbidden(err) {
							return nil
						}
						return errors.Errorf("%s has no permission to read %s/%s, and got %v instead of Forbidden", a.user.name,
							fuzzKinds[kind].resource, ns, err)
					}
					if err != nil {
						return err
					}
					return s.compare(kind, ns, versionsOf(list))
				})
			}
		}
		for _, h := range a.holds {
			if h.scope.Namespaces != nil {
				s.eventually(func() error { return s.checkSet(a, h) })
			} else if granted, _ := a.access(h.kind, h.scope.Namespace); granted {
				s.eventually(func() error { return s.compare(h.kind, h.scope.Namespace, h.ledger.versions()) })
			}
		}
	}
}

func (s *sequence) eventually(check func() error) {
	s.t.Helper()
	var err error
	for began := time.Now(); time.Since(began) < patience; <-time.After(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	s.fail("the caches still differ from the model: %v", err)
}

// compare compares objects of a kind in a namespace, by UID and resourceVersion, with those of the
// API server. compare returns an error if they differ.
func (s *sequence) compare(kind int, ns string, got map[types.UID]string) error {
	want := map[types.UID]string{}
	list := fuzzKinds[kind].list()
	if err := admin.List(context.Background(), list, client.InNamespace(ns)); err != nil {
		return err
	}
	for uid, version := range versionsOf(list) {
		want[uid] = version
	}
	if len(want) != len(got) {
		return errors.Errorf("%s/%s: got %d objects, the API server has %d", fuzzKinds[kind].resource, ns, len(got),
			len(want))
	}
	for uid, version := range want {
		if got[uid] != version {
			return errors.Errorf("%s/%s: object %s has resourceVersion %q, the API server has %q", fuzzKinds[kind].resource,
				ns, uid, got[uid], version)
		}
	}
	return nil
}

func versionsOf(list client.ObjectList) map[types.UID]string {
	versions := map[types.UID]string{}
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		versions[item.(client.Object).GetUID()] = item.(client.Object).GetResourceVersion()
		return nil
	})
	return versions
}
