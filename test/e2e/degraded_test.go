package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// summaries collects the states in a word that a subscriber sees.
type summaries struct {
	mu   sync.Mutex
	seen map[string][]string // guarded by mu; by extension, without repetitions
}

func (s *summaries) of(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen[name])
}

// subscribe collects the summaries until the test ends.
func subscribe(t *testing.T, o *operator) *summaries {
	s := &summaries{seen: map[string][]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		o.SubscribeStates(ctx, func(extensions []client.ObjectKey) {
			for _, key := range extensions {
				state, _ := o.GetConnectionState(ctx, key)
				summary := state.Summary()
				text := strings.TrimSpace(summary.State + " " + summary.Reason)
				s.mu.Lock()
				if all := s.seen[key.Name]; len(all) == 0 || all[len(all)-1] != text {
					s.seen[key.Name] = append(all, text)
				}
				s.mu.Unlock()
			}
		})
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s
}

// An extension that is connected, and whose work does not get done, is degraded, and subscribers
// learn of it: of what its identity may not watch, of what the API server cannot select or does not
// serve, and of requests that it refused. When that is over, the extension is Connected.
func TestDegraded(t *testing.T) {
	ctx := t.Context()
	ns := namespace(t)
	may := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	}
	thing := &unstructured.Unstructured{}
	thing.SetGroupVersionKind(schema.GroupVersionKind{Group: "none.example.com", Version: "v1", Kind: "Thing"})
	watcher := func(name string, kind client.Object, scope clustercache.Scope) func(g Gomega, o *operator, name string) {
		return func(g Gomega, o *operator, extension string) {
			g.Expect(o.Watch(ctx, key(extension), clustercache.NewWatcher(clustercache.WatcherOptions{
				Name:         name,
				Watcher:      newFakeController(t),
				Kind:         kind,
				EventHandler: clustercache.EnqueueFor(key(extension)),
				Scope:        scope,
			}))).To(Succeed())
		}
	}
	create1 := func(g Gomega, o *operator, extension string) error {
		c, err := o.GetClient(ctx, key(extension))
		g.Expect(err).NotTo(HaveOccurred())
		return c.Create(ctx, configMap(ns, extension))
	}
	grantMore := func(g Gomega, extension string, rule rbacv1.PolicyRule) {
		role := &rbacv1.Role{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: ns, Name: extension}, role)).To(Succeed())
		role.Rules = append(role.Rules, rule)
		g.Expect(admin.Update(ctx, role)).To(Succeed())
	}
	unwatch := func(_ Gomega, o *operator, extension string) { o.Unwatch(ctx, key(extension), "w") }
	cases := map[string]struct {
		reason        clustercache.ProblemReason
		message       string
		cause, repair func(g Gomega, o *operator, extension string)
	}{
		"forbidden": {
			clustercache.ProblemScopesForbidden, "Secret in namespace " + ns + ": ",
			watcher("w", &corev1.Secret{}, clustercache.Scope{Namespace: ns}),
			func(g Gomega, _ *operator, extension string) {
				grantMore(g, extension, may("secrets", "list", "watch"))
			},
		},
		"failing": {
			clustercache.ProblemScopesFailing, "ConfigMap in namespace " + ns + ", fields data.none=a: ",
			watcher("w", &corev1.ConfigMap{}, clustercache.Scope{
				Namespace:     ns,
				FieldSelector: fields.OneTermEqualSelector("data.none", "a"),
			}), unwatch,
		},
		"not-served": {
			clustercache.ProblemKindsNotServed, "Thing.none.example.com: ",
			watcher("w", thing, clustercache.Scope{}), unwatch,
		},
		"refused": {
			clustercache.ProblemRequestsRefused, "may not create configmaps in namespace " + ns,
			func(g Gomega, o *operator, extension string) {
				g.Expect(isForbidden(create1(g, o, extension))).To(BeTrue())
			},
			func(g Gomega, o *operator, extension string) {
				grantMore(g, extension, may("configmaps", "create"))
				g.Eventually(func() error { return create1(g, o, extension) }).WithTimeout(patience).Should(Succeed())
			},
		},
	}
	for name := range cases {
		create(t, serviceAccount(ns, name))
		grant(t, ns, name, may("configmaps", "get", "list", "watch"))
		create(t, extension(ns, name))
	}
	o := startOperator(t, clustercache.Options{
		Cache: clustercache.CacheOptions{AccessReviewInterval: 500 * time.Millisecond},
	})
	seen := subscribe(t, o)
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o.waitConnected(t, name)
			g.Eventually(func() []string { return seen.of(name) }).WithTimeout(patience).Should(HaveExactElements(
				ContainSubstring("Connect"), "Connected"))
			test.cause(g, o, name)
			degraded := "Degraded " + string(test.reason)
			g.Eventually(func() []string { return seen.of(name) }).WithTimeout(patience).Should(HaveExactElements(
				ContainSubstring("Connect"), "Connected", degraded))
			state := o.state(name)
			worst, since := state.Degraded()
			g.Expect(worst.Message).To(HavePrefix(test.message))
			g.Expect(since).To(BeTemporally("~", time.Now(), patience))
			g.Expect(state.Phase).To(Equal(clustercache.PhaseConnected))
			g.Expect(series(t)).To(HaveKeyWithValue("latchkey_degraded reason="+string(test.reason), BeEquivalentTo(1)))

			// Muted by the extension, it does not count.
			muted := extension(ns, name)
			g.Expect(admin.Get(ctx, key(name), muted)).To(Succeed())
			muted.SetAnnotations(map[string]string{clustercache.MuteAnnotation: string(test.reason)})
			g.Expect(admin.Update(ctx, muted)).To(Succeed())
			if test.reason == clustercache.ProblemScopesFailing { // no tenant causes it
				g.Consistently(func() string {
					state := o.state(name)
					return state.Summary().State
				}).WithTimeout(time.Second).
					Should(Equal("Degraded"))
			} else {
				g.Eventually(func() []string { return seen.of(name) }).WithTimeout(patience).Should(HaveExactElements(
					ContainSubstring("Connect"), "Connected", degraded, "Connected"))
				g.Expect(o.state(name).Problems).To(ConsistOf(HaveField("Muted", true)))
			}
			test.repair(g, o, name)
			g.Eventually(func() []clustercache.Problem { return o.state(name).Problems }).WithTimeout(patience).Should(BeEmpty())
			g.Eventually(func() string { all := seen.of(name); return all[len(all)-1] }).WithTimeout(patience).
				Should(Equal("Connected"))
		})
	}
}

// What an identity may not read, and is not meant to, is no problem: namespaces that a set only
// tries, and kinds that are read live.
func TestMeantToBeSo(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	bindOperator(t, "latchkey-rbac-events")
	ns, other := namespace(t), namespace(t)
	create(t, serviceAccount(ns, "some"))
	grant(t, ns, "some", rbacv1.PolicyRule{
		APIGroups: []string{""},
		Resources: []string{"configmaps"},
		Verbs:     []string{"list", "watch"},
	}, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}})
	create(t, extension(ns, "some"))
	create(t, configMap(other, "a"))
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "s"}})
	o := startOperator(t, clustercache.Options{
		Cache:  clustercache.CacheOptions{WatchRBAC: true, AccessReviewInterval: 500 * time.Millisecond},
		Client: clustercache.ClientOptions{Cache: clustercache.ClientCacheOptions{LiveGet: true}},
	})
	seen := subscribe(t, o)
	o.waitConnected(t, "some")
	c := newFakeController(t)
	g.Expect(o.Watch(ctx, key("some"), clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "w",
		Watcher:      c,
		Kind:         &corev1.ConfigMap{},
		EventHandler: clustercache.EnqueueFor(key("some")),
		Scope:        clustercache.Scope{Namespaces: scopedcache.WhereverAllowed()},
	}))).To(Succeed())
	reader, err := o.GetClient(ctx, key("some"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		return reader.Get(ctx, client.ObjectKey{Namespace: ns, Name: "s"}, &corev1.Secret{})
	}).WithTimeout(patience).Should(Succeed())
	g.Eventually(func() []scopedcache.ScopeState { return o.state("some").Scopes }).WithTimeout(patience).Should(
		ContainElements(HaveField("State", clustercache.StateSynced), HaveField("State", clustercache.StateLive)))
	g.Consistently(func() []clustercache.Problem { return o.state("some").Problems }).WithTimeout(2 * time.Second).
		Should(BeEmpty())
	all := seen.of("some") // for a moment it is not known that the Get is permitted
	g.Expect(all[len(all)-1]).To(Equal("Connected"))
}
