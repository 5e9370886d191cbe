package rbacindex

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

var (
	edits = flag.Int("rbac-edits", 400, "how many random edits of RBAC TestRandomEdits makes")
	seed  = flag.Uint64("rbac-seed", 0, "seed of TestRandomEdits; 0 for another one each time")
)

// Whom a random edit of RBAC concerns, according to the index, includes everyone whose permissions
// the API server evaluates otherwise after it.
func TestRandomEdits(t *testing.T) {
	g := NewWithT(t)
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-rbac-seed=%d", *seed)
	ctrl.SetLogger(logr.Discard())
	w := newRBACWorld(t, rand.New(rand.NewPCG(*seed, 0)))
	before := w.permissions(g)
	w.takeConcerns()
	changes, batches := 0, 0
	for made := 0; made < *edits; batches++ {
		for range 1 + w.random.IntN(12) {
			w.edit(g)
			made++
		}
		w.settle(t, batches)
		after, concerns := w.permissions(g), w.takeConcerns()
		for question, allowed := range after {
			if before[question] == allowed {
				continue
			}
			changes++
			if !w.concerned(question, concerns) {
				t.Errorf("after %d edits: %+v is %t now, and the index says that the edits concern %v only", made, question,
					allowed, describe(concerns))
			}
		}
		before = after
	}
	t.Logf("%d edits in %d steps changed %d permissions", *edits, batches, changes)
	g.Expect(changes).To(BeNumerically(">", *edits/10), "edits that change nothing prove nothing")
}

// question is a permission of a ServiceAccount.
type question struct{ account, in, namespace, resource string }

// rbacWorld makes random edits.
type rbacWorld struct {
	env        *testenv.Env
	random     *rand.Rand
	namespaces []string
	objects    map[string]client.Object // roles and bindings that exist, by kind and key

	mu       sync.Mutex
	index    *Index              // guarded by mu
	concerns []Concern           // guarded by mu
	seen     map[string]struct{} // guarded by mu; markers that the watches have delivered
}

func newRBACWorld(t *testing.T, random *rand.Rand) *rbacWorld {
	g := NewWithT(t)
	w := &rbacWorld{
		env:     testenv.New(t, controlplane.Options{}),
		random:  random,
		index:   New(),
		objects: map[string]client.Object{},
		seen:    map[string]struct{}{},
	}
	for range 3 {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "edits-"}}
		g.Expect(w.env.Admin.Create(t.Context(), namespace)).To(Succeed())
		w.namespaces = append(w.namespaces, namespace.Name)
	}
	c, err := cache.New(w.env.Config(), cache.Options{HTTPClient: w.env.AdminHTTP})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
	for _, kind := range []client.Object{&rbacv1.Role{}, &rbacv1.ClusterRole{}, &rbacv1.RoleBinding{},
		&rbacv1.ClusterRoleBinding{}} {
		informer, err := c.GetInformer(ctx, kind)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { w.note(o.(client.Object), w.index.Set) },
			UpdateFunc: func(_, o any) { w.note(o.(client.Object), w.index.Set) },
			DeleteFunc: func(o any) {
				if unknown, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
					o = unknown.Obj
				}
				w.note(o.(client.Object), w.index.Remove)
			},
		})
		g.Expect(err).NotTo(HaveOccurred())
	}
	return w
}

func (w *rbacWorld) note(object client.Object, record func(any) []Concern) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.concerns = append(w.concerns, record(object)...)
	w.seen[fmt.Sprintf("%T %s", object, object.GetAnnotations()["marker"])] = struct{}{}
}

func (w *rbacWorld) takeConcerns() []Concern {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.concerns
	w.concerns = nil
	return taken
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// edit creates, changes or deletes a role or binding.
func (w *rbacWorld) edit(g Gomega) {
	r := w.random
	meta := metav1.ObjectMeta{Name: pick(r, "a", "b", "c"), Namespace: pick(r, w.namespaces...)}
	global := metav1.ObjectMeta{Name: w.namespaces[0] + "-" + meta.Name} // of this test
	kind := pick(r, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
	var object client.Object
	switch kind {
	case "Role":
		object = &rbacv1.Role{ObjectMeta: meta, Rules: w.rules()}
	case "ClusterRole":
		object = &rbacv1.ClusterRole{ObjectMeta: global, Rules: w.rules()}
	case "RoleBinding":
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: pick(r, "a", "b", "c")}
		if r.IntN(2) == 0 {
			ref.Kind, ref.Name = "ClusterRole", w.namespaces[0]+"-"+ref.Name
		}
		object = &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: w.subjects()}
	default:
		object = &rbacv1.ClusterRoleBinding{
			ObjectMeta: global,
			Subjects:   w.subjects(),
			RoleRef: rbacv1.RoleRef{
				APIGroup: rbacv1.GroupName,
				Kind:     "ClusterRole",
				Name:     w.namespaces[0] + "-" + pick(r, "a", "b", "c"),
			},
		}
	}
	key := kind + " " + client.ObjectKeyFromObject(object).String()
	existing := w.objects[key]
	remove := existing != nil && r.IntN(3) == 0
	ctx := context.Background()
	if existing != nil && !remove && kind != "Role" && kind != "ClusterRole" && r.IntN(2) == 0 {
		// The roleRef of a binding cannot change, so only its subjects do.
		switch binding := existing.(type) {
		case *rbacv1.RoleBinding:
			binding.Subjects = w.subjects()
		case *rbacv1.ClusterRoleBinding:
			binding.Subjects = w.subjects()
		}
		g.Expect(w.env.Admin.Update(ctx, existing)).To(Succeed())
		return
	}
	if existing != nil {
		g.Expect(w.env.Admin.Delete(ctx, existing)).To(Succeed())
		delete(w.objects, key)
	}
	if !remove {
		g.Expect(w.env.Admin.Create(ctx, object)).To(Succeed())
		w.objects[key] = object
	}
}

func (w *rbacWorld) rules() (rules []rbacv1.PolicyRule) {
	r := w.random
	for range r.IntN(3) {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{pick(r, "", "*")},
			Resources: []string{pick(r, "pods", "secrets", "*")},
			Verbs:     []string{pick(r, "list", "get", "*")},
		})
	}
	return rules
}

func (w *rbacWorld) subjects() (subjects []rbacv1.Subject) {
	r := w.random
	for range 1 + r.IntN(2) {
		account, in := pick(r, "red", "green"), pick(r, w.namespaces...)
		subjects = append(subjects, pick(r,
			rbacv1.Subject{Kind: "ServiceAccount", Namespace: in, Name: account},
			rbacv1.Subject{Kind: "ServiceAccount", Namespace: in, Name: account},
			rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: "system:serviceaccount:" + in + ":" + account},
			rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: "someone"},
			rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts:" + in},
			rbacv1.Subject{
				APIGroup: rbacv1.GroupName,
				Kind:     "Group",
				Name: pick(r, "system:serviceaccounts",
					"system:authenticated", "others"),
			}))
	}
	return subjects
}

// allowed asks the API server about a user with the groups that it has.
func (w *rbacWorld) allowed(g Gomega, user string, groups []string, namespace, verb, resource string) bool {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               user,
		Groups:             groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: resource},
	}}
	g.Expect(w.env.Admin.Create(context.Background(), review)).To(Succeed())
	return review.Status.Allowed
}

// permissions asks the API server what each ServiceAccount may do.
func (w *rbacWorld) permissions(g Gomega) map[question]bool {
	result := map[question]bool{}
	for _, account := range []string{"red", "green"} {
		for _, in := range w.namespaces {
			for _, namespace := range append([]string{""}, w.namespaces...) {
				for _, resource := range []string{"pods", "secrets"} {
					result[question{account, in, namespace, resource}] = w.allowed(g, "system:serviceaccount:"+in+":"+account,
						[]string{"system:serviceaccounts", "system:serviceaccounts:" + in, "system:authenticated"}, namespace,
						"list", resource)
				}
			}
		}
	}
	return result
}

// concerned reports whether one of the concerns makes caches of the question's ServiceAccount ask.
func (w *rbacWorld) concerned(q question, concerns []Concern) bool {
	subjects, _ := SubjectsOf("system:serviceaccount:"+q.in+":"+q.account, nil)
	return slices.ContainsFunc(concerns, func(c Concern) bool {
		return slices.Contains(subjects, c.Subject) && (c.Namespace == "" || c.Namespace == q.namespace)
	})
}

// settle waits until the watches of this test, and those of the API server's authorizer, have
// delivered all edits: a marker of each kind, which is edited last, has an effect.
func (w *rbacWorld) settle(t *testing.T, batch int) {
	g := NewWithT(t)
	ctx := context.Background()
	name, namespace := w.namespaces[0]+"-marker", w.namespaces[0]
	marker := fmt.Sprint("marker-", batch)
	meta := metav1.ObjectMeta{Name: name, Annotations: map[string]string{"marker": marker}}
	local := meta
	local.Namespace = namespace
	fixed := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"fixed"}, Verbs: []string{"list"}}}
	current := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{marker}, Verbs: []string{"list"}}}
	user := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}
	}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	static := func(m metav1.ObjectMeta) metav1.ObjectMeta {
		m.Name += "-static"
		return m
	}
	for _, object := range []client.Object{
		// what does not change, so that each marker depends on one kind only
		&rbacv1.Role{ObjectMeta: static(local), Rules: fixed},
		&rbacv1.ClusterRole{ObjectMeta: static(meta), Rules: fixed},
		&rbacv1.RoleBinding{ObjectMeta: static(local), RoleRef: ref("Role", name), Subjects: user("marker-role")},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: static(meta),
			RoleRef:    ref("ClusterRole", name),
			Subjects:   user("marker-clusterrole"),
		},
		// the markers
		&rbacv1.Role{ObjectMeta: local, Rules: current},
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: current},
		&rbacv1.RoleBinding{ObjectMeta: local, RoleRef: ref("Role", name+"-static"), Subjects: user(marker)},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref("ClusterRole", name+"-static"), Subjects: user(marker)},
	} {
		err := w.env.Admin.Create(ctx, object.DeepCopyObject().(client.Object))
		if apierrors.IsAlreadyExists(err) {
			err = w.env.Admin.Update(ctx, object)
		}
		g.Expect(err).NotTo(HaveOccurred())
	}
	for _, c := range []struct{ user, namespace, resource string }{{"marker-role", namespace, marker},
		{"marker-clusterrole", "", marker}, {marker, namespace, "fixed"}, {marker, "", "fixed"}} {
		g.Eventually(func() bool { return w.allowed(g, c.user, nil, c.namespace, "list", c.resource) }).
			WithTimeout(testenv.Patience).WithPolling(time.Millisecond).Should(BeTrue(), "%+v", c)
	}
	g.Eventually(func() (missing []string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, kind := range []client.Object{&rbacv1.Role{}, &rbacv1.ClusterRole{}, &rbacv1.RoleBinding{},
			&rbacv1.ClusterRoleBinding{}} {
			key := fmt.Sprintf("%T %s", kind, marker)
			if _, delivered := w.seen[key]; !delivered {
				missing = append(missing, key)
			}
		}
		return missing
	}).WithTimeout(testenv.Patience).WithPolling(time.Millisecond).Should(BeEmpty())
}
