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
)

var (
	fuzzFor  = flag.Duration("fuzz-rbac", 0, "go on with more seeds for so long; make fuzz-rbac sets it")
	fuzzSeed = flag.Uint64("seed", 0, "run this seed only")
)

const (
	// bound is how long after a change of rights the cache may still go by the old ones:
	// AccessReviewInterval, the time it takes to believe a denial, and generous room for a loaded
	// machine.
	bound = 10 * time.Second
	// restartingSeed is of a recorded sequence that restarts the API server in any case.
	restartingSeed = 2
	// readTimeout is what reads are bounded by.
	readTimeout = 5 * time.Second
)

// Random grants, revocations, creations, deletions, reads, watches and restarts of the API server,
// against a model of what each user may: nothing is read, and nobody is refused, for longer than
// the bound after a change; handlers that may see something have been told of all of it; nothing
// hangs.
func TestRandomRights(t *testing.T) {
	if *fuzzSeed != 0 {
		newSequence(t, *fuzzSeed).run()
		return
	}
	judged, flips := 0, 0
	for _, seed := range recordedSeeds(t) {
		s := newSequence(t, seed)
		s.run()
		judged += s.judged
		flips += s.flips
	}
	t.Logf("%d reads of rights that were lost for longer than the bound, %d after others that had got what they must",
		judged, flips)
	NewWithT(t).Expect(judged).To(BeNumerically(">", 2), "reads whose right was lost for longer than the bound")
	begun := time.Now()
	for seed, n := uint64(begun.UnixNano()), 1; time.Since(begun) < *fuzzFor; seed, n = seed+1, n+1 {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { newSequence(t, seed).run() }) {
			t.Fatalf(
				"sequence %d failed; to see it again: go test -race ./test/e2e/scopedcache -run TestRandomRights -seed %d", n,
				seed)
		}
		if n%10 == 0 {
			fmt.Printf("%d sequences in %s, nothing found\n", n, time.Since(begun).Round(time.Second))
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

// fuzzKinds are the kinds of the sequences.
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

// right is what the model knows of a grant.
type right struct {
	grants  *grants // nil before the first grant
	held    bool
	changed time.Time
}

// actor is a user with a cache, and what the model knows of it.
type actor struct {
	user    *user
	cache   *started
	options scopedcache.Options
	rights  map[string]*right // by resource and namespace; "" is all
	held    []*fuzzHold
}

type fuzzHold struct {
	kind      int
	namespace string
	handle    *scopedcache.Handle
	told      *ledger
}

type sequence struct {
	t          *testing.T
	g          *WithT
	random     *rand.Rand
	seed       uint64
	namespaces []string
	actors     []*actor
	objects    map[string]client.Object // by kind, namespace and name
	restarted  time.Time
	steps      []string // what was done, for a report
	judged     int      // reads without a right that was lost for longer than the bound
	// since when what reads get is as it is, if a read got it since, by user, kind and namespace
	known map[string]time.Time
	flips int // reads that were judged by what reads got before
}

func newSequence(t *testing.T, seed uint64) *sequence {
	t.Helper()
	s := &sequence{t: t, g: NewWithT(t), random: rand.New(rand.NewPCG(seed, seed)), seed: seed,
		objects: map[string]client.Object{}, known: map[string]time.Time{}}
	for range 3 {
		s.namespaces = append(s.namespaces, namespace(t))
	}
	for range 2 {
		a := &actor{user: newUser(t), rights: map[string]*right{}}
		a.options = scopedcache.Options{
			AccessReviewInterval: 300 * time.Millisecond, ReadTimeout: readTimeout,
			PerNamespace: s.chance(2), WatchRBAC: s.chance(2), PollWithoutWatch: s.chance(4),
		}
		if s.chance(3) {
			a.options.IdleTimeout = 500 * time.Millisecond
		}
		if a.options.WatchRBAC {
			a.options.AccessReviewInterval = time.Second
			a.user.grantRule(t, "",
				rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"*"},
					Verbs: []string{"list", "watch"}})
		}
		s.actors = append(s.actors, a)
	}
	for _, a := range s.actors {
		a.cache = a.user.start(t, a.options, cache.Options{})
	}
	return s
}

func (s *sequence) chance(oneIn int) bool { return s.random.IntN(oneIn) == 0 }

func (s *sequence) note(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

// fail reports what was done.
func (s *sequence) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s, after\n%s", s.seed, fmt.Sprintf(format, args...), strings.Join(s.steps, "\n"))
}

func (s *sequence) run() {
	hangs := time.AfterFunc(10*time.Minute, func() { // ten times what it takes
		debug.SetTraceback("all")
		panic(fmt.Sprintf("the sequence of seed %d hangs", s.seed))
	})
	defer hangs.Stop()
	defer func() {
		for _, a := range s.actors {
			a.cache.stop() // all of them, before it is looked what is left
		}
	}()
	for range 80 {
		a := s.actors[s.random.IntN(len(s.actors))]
		switch s.random.IntN(20) {
		case 0, 1, 2, 3:
			s.changeRight(a)
		case 4, 5, 6, 7, 8:
			s.changeObject()
		case 9, 10:
			s.hold(a)
		case 11:
			s.release(a)
		case 12:
			if s.chance(12) || s.seed == restartingSeed && s.restarted.IsZero() {
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
		for len(a.held) > 0 {
			s.release(a)
		}
	}
}

func (s *sequence) where(oneInAll int) string {
	if s.chance(oneInAll) {
		return ""
	}
	return s.namespaces[s.random.IntN(len(s.namespaces))]
}

func (s *sequence) changeRight(a *actor) {
	kind, ns := s.random.IntN(len(fuzzKinds)), s.where(5)
	key := fuzzKinds[kind].resource + "/" + ns
	r := a.rights[key]
	switch {
	case r == nil:
		r = &right{grants: a.user.grant(s.t, ns, fuzzKinds[kind].resource, "list", "watch"), held: true}
		a.rights[key] = r
	case r.held:
		r.grants.revoke(s.t)
		r.held = false
	default:
		r.grants.again(s.t)
		r.held = true
	}
	r.changed = time.Now()
	s.note("%s may list and watch %s: %t", a.user.name, key, r.held)
}

// may tells whether the user may read, and since when that is so.
func (a *actor) may(kind int, namespace string) (held bool, since time.Time) {
	for _, where := range slices.Compact([]string{namespace, ""}) {
		if r := a.rights[fuzzKinds[kind].resource+"/"+where]; r != nil {
			held = held || r.held
			if r.changed.After(since) {
				since = r.changed // a change of either may have been one
			}
		}
	}
	return held, since
}

func (s *sequence) changeObject() {
	kind, ns, name := s.random.IntN(len(fuzzKinds)), s.where(1<<30), fmt.Sprint("o", s.random.IntN(5))
	key := fmt.Sprint(kind, ns, name)
	existing := s.objects[key]
	switch {
	case existing == nil:
		made := fuzzKinds[kind].object(ns, name)
		s.g.Expect(admin.Create(context.Background(), made)).To(Succeed())
		s.objects[key] = made
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
	kind, ns := s.random.IntN(len(fuzzKinds)), s.where(4)
	list := fuzzKinds[kind].list()
	begun := time.Now()
	err := a.cache.List(context.Background(), list, client.InNamespace(ns))
	took := time.Since(begun)
	s.note("%s read %s/%s: %v after %s", a.user.name, fuzzKinds[kind].resource, ns, err, took.Round(time.Millisecond))
	s.judge(a, kind, ns, list, err, begun, took)
}

// judge compares what a read got with the model.
func (s *sequence) judge(a *actor, kind int, ns string, list client.ObjectList, err error, begun time.Time,
	took time.Duration) {
	s.t.Helper()
	held, since := a.may(kind, ns)
	settled := begun.Sub(since) > bound
	if settled && !held && !since.IsZero() {
		s.judged++
	}
	restarting := time.Since(s.restarted) < 30*time.Second
	// What a read got once since the last change of rights all get after it, however little time
	// has passed. (Of an informer that has just begun a first denial is believed, also that of an
	// API server in its first moments.)
	key := fmt.Sprint(a.user.name, kind, ns)
	if last, ok := s.known[key]; ok && last.Equal(since) && !restarting {
		s.flips++
		if (err == nil) != held {
			s.fail("%s read %s/%s and got %v, after another read since the right changed (%t) got otherwise", a.user.name,
				fuzzKinds[kind].resource, ns, err, held)
		}
	}
	if err == nil && held || apierrors.IsForbidden(err) && !held {
		s.known[key] = since
	}
	switch {
	case took > readTimeout+5*time.Second:
		s.fail("a read took %s", took)
	case err == nil && !held && settled:
		s.fail("%s read %s/%s, with %d objects, %s after the right was lost", a.user.name, fuzzKinds[kind].resource, ns,
			meta.LenList(list), time.Since(since))
	case apierrors.IsForbidden(err) && held && settled:
		s.fail("%s was refused %s/%s, %s after it was granted: %v", a.user.name, fuzzKinds[kind].resource, ns,
			time.Since(since), err)
	case err != nil && !apierrors.IsForbidden(err) && !restarting:
		s.fail("%s read %s/%s: %v", a.user.name, fuzzKinds[kind].resource, ns, err)
	}
	if err == nil && ns != "" {
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			if item.(client.Object).GetNamespace() != ns {
				s.fail("%s read in %s what is in %s", a.user.name, ns, item.(client.Object).GetNamespace())
			}
			return nil
		})
	}
}

func (s *sequence) hold(a *actor) {
	if len(a.held) > 6 {
		return
	}
	h := &fuzzHold{kind: s.random.IntN(len(fuzzKinds)), namespace: s.where(4), told: newLedger()}
	h.told.refeeds = true
	var err error
	h.handle, err = a.cache.Hold(context.Background(), fuzzKinds[h.kind].object("", ""),
		scopedcache.Scope{Namespace: h.namespace},
		scopedcache.HoldOptions{Dependent: types.UID(fmt.Sprint("dependent-", s.random.IntN(1<<30)))})
	s.g.Expect(err).NotTo(HaveOccurred())
	_, err = h.handle.AddEventHandler(h.told)
	s.g.Expect(err).NotTo(HaveOccurred())
	a.held = append(a.held, h)
	s.note("%s holds %s/%s", a.user.name, fuzzKinds[h.kind].resource, h.namespace)
}

func (s *sequence) release(a *actor) {
	if len(a.held) == 0 {
		return
	}
	i := s.random.IntN(len(a.held))
	h := a.held[i]
	a.held = slices.Delete(a.held, i, i+1)
	h.handle.Release()
	s.note("%s releases %s/%s", a.user.name, fuzzKinds[h.kind].resource, h.namespace)
	if wrong := h.told.wrong(); len(wrong) > 0 {
		s.fail("the handler of %s/%s was told of %v", fuzzKinds[h.kind].resource, h.namespace, wrong)
	}
}

func (s *sequence) restart() {
	s.restarted = time.Now()
	s.g.Expect(cp.KillAPIServer(context.Background())).To(Succeed())
	s.g.Expect(cp.StartAPIServer(context.Background())).To(Succeed())
	s.restarted = time.Now()
	s.note("restarted the API server")
}

// settle waits for the bound. Then everybody must be served as the model says: everything that may
// be read is, and was told; the rest is refused.
func (s *sequence) settle() {
	s.note("settling")
	last := s.restarted
	for _, a := range s.actors {
		for _, r := range a.rights {
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
				begun := time.Now()
				err := a.cache.List(context.Background(), list, client.InNamespace(ns))
				s.judge(a, kind, ns, list, err, begun, time.Since(begun))
			}
		}
	}
	for _, a := range s.actors {
		for kind := range fuzzKinds {
			for _, ns := range append([]string{""}, s.namespaces...) {
				held, _ := a.may(kind, ns)
				s.eventually(func() error {
					list := fuzzKinds[kind].list()
					err := a.cache.List(context.Background(), list, client.InNamespace(ns))
					if !held {
						if apierrors.IsForbidden(err) {
							return nil
						}
						return errors.Errorf("%s may not read %s/%s, and got %v", a.user.name, fuzzKinds[kind].resource, ns, err)
					}
					if err != nil {
						return err
					}
					return s.compare(kind, ns, versionsOf(list))
				})
			}
		}
		for _, h := range a.held {
			if held, _ := a.may(h.kind, h.namespace); held {
				s.eventually(func() error { return s.compare(h.kind, h.namespace, h.told.versions()) })
			}
		}
	}
}

func (s *sequence) eventually(check func() error) {
	s.t.Helper()
	var err error
	for begun := time.Now(); time.Since(begun) < patience; <-time.After(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	s.fail("it does not settle: %v", err)
}

// compare compares what is known of a kind in a namespace, by UID and resourceVersion, with what
// there is.
func (s *sequence) compare(kind int, ns string, known map[types.UID]string) error {
	there := map[types.UID]string{}
	list := fuzzKinds[kind].list()
	if err := admin.List(context.Background(), list, client.InNamespace(ns)); err != nil {
		return err
	}
	for uid, version := range versionsOf(list) {
		there[uid] = version
	}
	if len(there) != len(known) {
		return errors.Errorf("%s/%s: %d objects are known, there are %d", fuzzKinds[kind].resource, ns, len(known),
			len(there))
	}
	for uid, version := range there {
		if known[uid] != version {
			return errors.Errorf("%s/%s: %s is known as %q, it is %q", fuzzKinds[kind].resource, ns, uid, known[uid], version)
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
