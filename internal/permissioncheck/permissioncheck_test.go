package permissioncheck

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// server answers reviews: what is in allowed is, all else is denied.
type server struct {
	allowed []string // verb resource/subresource namespace name
	wait    time.Duration
	status  authorizationv1.SubjectAccessReviewStatus // of what is not allowed
	err     error
	by      string // reason of what is allowed; empty for RBAC

	mu               sync.Mutex
	asked            []string
	underWay, atOnce int
}

func (s *server) review(_ context.Context, spec authorizationv1.SelfSubjectAccessReviewSpec) (
	authorizationv1.SubjectAccessReviewStatus, error) {
	text := ""
	if of := spec.ResourceAttributes; of != nil {
		text = fmt.Sprint(of.Verb, " ", of.Resource, "/", of.Subresource, " ", of.Namespace, " ", of.Name)
	} else {
		text = spec.NonResourceAttributes.Verb + " " + spec.NonResourceAttributes.Path
	}
	s.mu.Lock()
	s.asked = append(s.asked, text)
	s.underWay++
	s.atOnce = max(s.atOnce, s.underWay)
	s.mu.Unlock()
	time.Sleep(s.wait)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay--
	if slices.Contains(s.allowed, text) {
		return authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: cmp.Or(s.by, byRBAC+"x")}, nil
	}
	return s.status, s.err
}

func newChecker(t *testing.T, s *server, objects ...client.Object) *Checker {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(corev1.AddToScheme(scheme)).To(Succeed())
	NewWithT(t).Expect(rbacv1.AddToScheme(scheme)).To(Succeed())
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ConfigMap", "Pod"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	for _, kind := range []string{"Role", "RoleBinding"} {
		mapper.Add(rbacv1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"ClusterRole", "ClusterRoleBinding"} {
		mapper.Add(rbacv1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	c := fakeclient.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...).Build()
	return New(c, s.review)
}

func configMap(name string) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}}
}

func texts(missing []Missing) (all []string) {
	for _, m := range missing {
		all = append(all, fmt.Sprint(m.Verb, " ", m.Resource, " ", m.Namespace, " ", m.Name, " ", m.For))
	}
	slices.Sort(all)
	return all
}

// At most ten reviews are under way, equal questions are one, and an answer counts for some
// seconds.
func TestReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &server{wait: 100 * time.Millisecond}
		checker := newChecker(t, s)
		check := Check{Verbs: []string{"get", "list"}}
		for n := range 30 {
			check.Objects = append(check.Objects, configMap(fmt.Sprint("c", n)))
		}
		answer, err := checker.Run(t.Context(), check)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Missing).To(HaveLen(31))
		g.Expect(s.atOnce).To(Equal(10))
		first := len(s.asked)
		g.Expect(first).To(Equal(32), "and whether it may get the namespace")
		_, err = checker.Run(t.Context(), check)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.asked).To(HaveLen(first))
		time.Sleep(remembered)
		_, err = checker.Run(t.Context(), check)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.asked).To(HaveLen(2 * first))
	})
}

// What the API server cannot evaluate is neither missing nor permitted, and a review without an
// answer is an error.
func TestUndecided(t *testing.T) {
	g := NewWithT(t)
	s := &server{status: authorizationv1.SubjectAccessReviewStatus{EvaluationError: "webhook is down"}}
	check := Check{Objects: []client.Object{configMap("c")}, Verbs: []string{"get"}}
	answer, err := newChecker(t, s).Run(t.Context(), check)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answer.Missing).To(BeEmpty())
	g.Expect(answer.Undecided).To(HaveLen(1))
	g.Expect(answer.Undecided[0].Reason).To(Equal("webhook is down"))
	s = &server{status: authorizationv1.SubjectAccessReviewStatus{Denied: true, EvaluationError: "x", Reason: "no"}}
	answer, err = newChecker(t, s).Run(t.Context(), check)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answer.Missing[0].Reason).To(Equal("no"))
	_, err = newChecker(t, &server{err: errors.New("unreachable")}).Run(t.Context(), check)
	g.Expect(err).To(MatchError("reviewing access: unreachable"))
}

// Permission to create is asked for by name with an apply, and is not missing for what exists.
func TestCreate(t *testing.T) {
	g := NewWithT(t)
	s := &server{allowed: []string{"get configmaps/ n there", "patch configmaps/ n there", "patch configmaps/ n new"}}
	checker := newChecker(t, s, configMap("there"))
	check := Check{Objects: []client.Object{configMap("there"), configMap("new")}, Verbs: []string{"create", "patch"}}
	answer, err := checker.Run(t.Context(), check)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(texts(answer.Missing)).To(Equal([]string{"create configmaps n new [1]"}))
	check.Verbs = []string{"create"}
	answer, err = checker.Run(t.Context(), check)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(texts(answer.Missing)).To(Equal([]string{"create configmaps n  [0 1]"}))
}

func unstructuredObject(t *testing.T, fields map[string]any) client.Object {
	t.Helper()
	return &unstructured.Unstructured{Object: fields}
}

// Kinds, namespaces and roles that a part of the content makes are named as that.
func TestWhatTheContentMakes(t *testing.T) {
	g := NewWithT(t)
	s := &server{allowed: []string{"get namespaces/ own own", "patch configmaps/ own c", "patch namespaces/ own own",
		"patch customresourcedefinitions/  things.example.com", "patch things/  one", "patch roles/ n r",
		"get configmaps/ n ", "get roles/ n r", "patch rolebindings/ n b", "get namespaces/ n n"}}
	named := func(kind, namespace, name string) map[string]any {
		metadata := map[string]any{"name": name}
		if namespace != "" {
			metadata["namespace"] = namespace
		}
		return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": metadata}
	}
	with := func(fields map[string]any, apiVersion string, more map[string]any) map[string]any {
		fields["apiVersion"] = apiVersion
		for key, value := range more {
			fields[key] = value
		}
		return fields
	}
	rbac := rbacv1.SchemeGroupVersion.String()
	rules := map[string]any{"rules": []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"configmaps"},
		"verbs": []any{"get"}}}}
	answer, err := newChecker(t, s, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}).Run(t.Context(), Check{
		Verbs: []string{"patch"},
		Objects: []client.Object{
			unstructuredObject(t, named("Namespace", "", "own")),
			unstructuredObject(t, named("ConfigMap", "own", "c")),
			unstructuredObject(t, with(named("CustomResourceDefinition", "", "things.example.com"), "apiextensions.k8s.io/v1",
				map[string]any{"spec": map[string]any{"group": "example.com", "scope": "Cluster", "names": map[string]any{
					"kind": "Thing", "plural": "things"}}})),
			unstructuredObject(t, with(named("Thing", "", "one"), "example.com/v1", nil)),
			unstructuredObject(t, with(named("Role", "n", "r"), rbac, rules)),
			unstructuredObject(t, with(named("RoleBinding", "n", "b"), rbac, map[string]any{"roleRef": map[string]any{
				"apiGroup": rbacv1.GroupName, "kind": "Role", "name": "r"}})),
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answer.Missing).To(BeEmpty(), "the identity has what the role gives")
	var notFound []string
	for _, found := range answer.NotFound {
		notFound = append(notFound, fmt.Sprint(found.Kind.Kind, " ", found.Name, " ", found.Created, " ", found.For))
	}
	slices.Sort(notFound)
	g.Expect(notFound).To(Equal([]string{"CustomResourceDefinition  false [2]", "Namespace own true [1]",
		"Role r true [5]", "Thing  true [3]"}))
}

// A role that aggregates others gives everything, as far as RBAC is concerned.
func TestAggregatedRole(t *testing.T) {
	g := NewWithT(t)
	role := &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "all"},
		AggregationRule: &rbacv1.AggregationRule{},
	}
	check := Check{Objects: []client.Object{role}, Verbs: []string{"patch"}}
	s := &server{allowed: []string{"patch clusterroles/  all", "* */  ", "* *"}}
	answer, err := newChecker(t, s).Run(t.Context(), check)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answer.Missing).To(BeEmpty())
	s.by = "a webhook"
	answer, err = newChecker(t, s).Run(t.Context(), check)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(texts(answer.Undecided)).To(Equal([]string{"escalate clusterroles  all [0]"}), "it has that, but not by RBAC")
	s = &server{allowed: []string{"patch clusterroles/  all", "* */  "}}
	answer, err = newChecker(t, s).Run(t.Context(), check)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(texts(answer.Missing)).To(Equal([]string{"escalate clusterroles  all [0]"}))
	g.Expect(answer.Missing[0].Reason).To(Equal("the role gives * *, which the identity does not have"))
}

func TestInvalidObjects(t *testing.T) {
	g := NewWithT(t)
	for want, object := range map[string]client.Object{
		"object 0 is nil":                    nil,
		"object 0, a ConfigMap, has no name": &corev1.ConfigMap{},
		"ConfigMap c has no namespace":       &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
		"the kind of object 0":               &metav1.PartialObjectMetadata{},
	} {
		_, err := newChecker(t, &server{}).Run(t.Context(), Check{Objects: []client.Object{object}, Verbs: []string{"get"}})
		g.Expect(err).To(MatchError(ContainSubstring(want)))
	}
}

func rule(verb string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{"pods"}}
}

// To write a role takes what it gives, whatever its namespace says and however large it is. RBAC
// asks nothing only if nothing changes.
func TestWritesOfRoles(t *testing.T) {
	g := NewWithT(t)
	metadata := metav1.ObjectMeta{Namespace: "n", Name: "r", Labels: map[string]string{"a": "b"}}
	present := &rbacv1.Role{ObjectMeta: metadata, Rules: []rbacv1.PolicyRule{rule("get")}}
	s := &server{allowed: []string{"patch roles/ n r", "get roles/ n r", "patch clusterroles/  r"}}
	missing := func(object client.Object) []string {
		answer, err := newChecker(t, s, present.DeepCopy()).Run(t.Context(),
			Check{Objects: []client.Object{object}, Verbs: []string{"patch"}})
		g.Expect(err).NotTo(HaveOccurred())
		return append(texts(answer.Missing), texts(answer.Undecided)...)
	}
	escalate := []string{"escalate roles n r [0]"}
	g.Expect(missing(present)).To(BeEmpty(), "it is as it is")
	relabelled := present.DeepCopy()
	relabelled.Labels["c"] = "d"
	g.Expect(missing(relabelled)).To(Equal(escalate))
	withoutRules := relabelled.DeepCopy()
	withoutRules.Rules = nil
	g.Expect(missing(withoutRules)).To(Equal(escalate), "to apply it keeps the rules")
	cluster := &rbacv1.ClusterRole{ObjectMeta: metadata, Rules: []rbacv1.PolicyRule{rule("get")}}
	g.Expect(missing(cluster)).To(Equal([]string{"escalate clusterroles  r [0]"}), "it has no namespace")
	huge := relabelled.DeepCopy()
	for n := range 100 {
		huge.Rules[0].Verbs = append(huge.Rules[0].Verbs, fmt.Sprint("v", n))
		huge.Rules[0].APIGroups = append(huge.Rules[0].APIGroups, fmt.Sprint("g", n))
		huge.Rules[0].Resources = append(huge.Rules[0].Resources, fmt.Sprint("r", n))
	}
	g.Expect(missing(huge)).To(Equal(escalate), "undecided: a million permissions")
	g.Expect(len(s.asked)).To(BeNumerically("<", 100))
}

// A binding gives what its role gives when it is written: that of the content only if it comes
// before.
func TestOrderOfRoles(t *testing.T) {
	g := NewWithT(t)
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"},
		Rules:      []rbacv1.PolicyRule{rule("get")},
	}
	present := role.DeepCopy()
	present.Rules = []rbacv1.PolicyRule{rule("delete")}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "r"},
	}
	s := &server{allowed: []string{"patch roles/ n r", "patch rolebindings/ n b", "get roles/ n r", "get pods/ n "}}
	missing := func(objects ...client.Object) []string {
		answer, err := newChecker(t, s, present.DeepCopy()).Run(t.Context(),
			Check{Objects: objects, Verbs: []string{"patch"}})
		g.Expect(err).NotTo(HaveOccurred())
		return texts(answer.Missing)
	}
	g.Expect(missing(role, binding)).To(BeEmpty())
	g.Expect(missing(binding, role)).To(Equal([]string{"bind roles n r [0]"}))
}

// A CustomResourceDefinition that no API server takes defines nothing: neither does a wildcard.
func TestInvalidDefinitions(t *testing.T) {
	g := NewWithT(t)
	crd := unstructuredObject(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "x"},
		"spec": map[string]any{
			"group": "*",
			"scope": "Namespaced",
			"names": map[string]any{"kind": "Foo", "plural": "*"},
		},
	})
	foo := unstructuredObject(t, map[string]any{
		"apiVersion": "*/v1",
		"kind":       "Foo",
		"metadata":   map[string]any{"namespace": "n", "name": "x"},
	})
	answer, err := newChecker(t, &server{}).Run(t.Context(),
		Check{Objects: []client.Object{crd, foo}, Verbs: []string{"patch"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answer.Missing).To(BeEmpty())
	g.Expect(answer.NotFound).To(HaveLen(2))
}
