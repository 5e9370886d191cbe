package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// contentKinds are manifests of a random content, with N for the namespace and S for a suffix.
var contentKinds = []string{
	`{apiVersion: v1, kind: ConfigMap, metadata: {name: S, namespace: N}}`,
	`{apiVersion: v1, kind: Secret, metadata: {name: S, namespace: N}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: S, namespace: N}, spec: {ports: [{port: 80}]}}`,
	`{apiVersion: v1, kind: ServiceAccount, metadata: {name: S, namespace: N}}`,
	`{apiVersion: apps/v1, kind: Deployment, metadata: {name: S, namespace: N}, spec: {selector: {matchLabels: {a: b}},
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`,
	`{apiVersion: v1, kind: Namespace, metadata: {name: N-S}}`,
	`{apiVersion: v1, kind: ConfigMap, metadata: {name: S, namespace: N-missing}}`,
	`{apiVersion: unserved.example.com/v1, kind: Unserved, metadata: {name: S, namespace: N}}`,
	`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: S, namespace: N},
  rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, list]}]}`,
	`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: S, namespace: N},
  rules: [{apiGroups: [apps], resources: ["*"], verbs: [get]}, {apiGroups: [""], resources: [pods/log], verbs: [get]}]}`,
	`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: N-S},
  rules: [{apiGroups: [""], resources: [secrets], resourceNames: [x], verbs: [get]}]}`,
	`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: S, namespace: N},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: present}, subjects: [{kind: ServiceAccount, name: x}]}`,
	`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: S, namespace: N},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}}`,
	`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: S, namespace: N},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: absent}}`,
}

func parseContent(manifest, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	text := []byte(manifest)
	for _, pair := range [][2]string{{"namespace: N", "namespace: " + namespace},
		{"name: N-S", "name: " + namespace + "-" + name}, {"name: S", "name: " + name}} {
		text = []byte(strings.ReplaceAll(string(text), pair[0], pair[1]))
	}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		panic(err)
	}
	return object
}

// What CheckPermissions says before the first write is what a dry run of each write says, and what
// each read, for random contents and permissions: what is forbidden, and what is not there.
func TestCheckPermissions(t *testing.T) {
	const pairs, groups = 200, 10
	o := startOperator(t, clustercache.Options{Client: clustercache.ClientOptions{QPS: 10000, Burst: 10000}})
	var partly, escalating, missingThings, undecided, compared, present atomic.Int32
	t.Run("pairs", func(t *testing.T) {
		for group := range groups {
			t.Run(strconv.Itoa(group), func(t *testing.T) {
				t.Parallel()
				for seed := group; seed < pairs; seed += groups {
					p := newPair(t, o, uint64(seed))
					p.compare(t)
					if p.forbidden > 0 && p.permitted > 0 {
						partly.Add(1)
					}
					if p.escalates {
						escalating.Add(1)
					}
					if p.notFound > 0 {
						missingThings.Add(1)
					}
					undecided.Add(int32(p.undecided))
					present.Add(int32(p.present))
					compared.Add(int32(p.permitted + p.forbidden + p.notFound))
				}
			})
		}
	})
	t.Logf("%d answers compared, %d undecided; of %d pairs %d partly permitted, %d with escalation, %d with what is not "+
		"there", compared.Load(), undecided.Load(), pairs, partly.Load(), escalating.Load(), missingThings.Load())
	g := NewWithT(t)
	g.Expect(present.Load()).To(BeNumerically(">", pairs/4))
	g.Expect(undecided.Load()).To(BeNumerically("<", pairs/2), "bindings of roles that the identity cannot read")
	g.Expect(partly.Load()).To(BeNumerically(">=", pairs/3))
	g.Expect(escalating.Load()).To(BeNumerically(">=", pairs/5))
	g.Expect(missingThings.Load()).To(BeNumerically(">=", pairs/5))
}

// pair is a content and an identity with some permissions.
type pair struct {
	seed                                               uint64
	namespace                                          string
	objects                                            []client.Object
	bound                                              clustercache.Bound
	permitted, forbidden, notFound, undecided, present int
	there                                              []int // objects that were there before
	escalates                                          bool
}

func newPair(t *testing.T, o *operator, seed uint64) *pair {
	t.Helper()
	g := NewWithT(t)
	random := rand.New(rand.NewPCG(seed, 39))
	p := &pair{seed: seed, namespace: namespace(t)}
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "present"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}},
	})
	for n := range 2 + random.IntN(4) {
		manifest := contentKinds[random.IntN(len(contentKinds))]
		p.objects = append(p.objects, parseContent(manifest, p.namespace, "o"+strconv.Itoa(n)))
	}
	for n, object := range p.objects { // some are there already, as they are or otherwise
		kind := object.GetObjectKind().GroupVersionKind().Kind
		if random.IntN(4) > 0 || isUnknown(object, p.namespace) || kind == "Unserved" {
			continue
		}
		there := object.DeepCopyObject().(*unstructured.Unstructured)
		if random.IntN(2) == 0 {
			there.SetLabels(map[string]string{"other": "label"})
		}
		create(t, there)
		p.present++
		p.there = append(p.there, n)
	}
	create(t, serviceAccount(p.namespace, "checked"))
	marker := rbacv1.PolicyRule{
		APIGroups:     []string{""},
		Resources:     []string{"pods"},
		ResourceNames: []string{"marker-" + p.namespace},
		Verbs:         []string{"get"},
	}
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: p.namespace, Name: "checked"}}
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "checked"},
		Rules:      append(randomRules(random, p.objects), marker),
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "checked"},
		Subjects:   subject,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "checked"},
	})
	marker.ResourceNames = []string{"cluster-" + p.namespace}
	create(t, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: p.namespace},
		Rules:      append(randomRules(random, p.objects), marker),
	})
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: p.namespace},
		Subjects:   subject,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: p.namespace},
	})
	for _, name := range []string{"marker-", "cluster-"} {
		g.Eventually(func() bool {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + p.namespace + ":checked",
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: p.namespace,
					Verb:      "get",
					Resource:  "pods",
					Name:      name + p.namespace,
				},
			}}
			g.Expect(admin.Create(t.Context(), review)).To(Succeed())
			return review.Status.Allowed
		}).WithTimeout(testenv.Patience).Should(BeTrue())
	}
	e := extension(p.namespace, "checked")
	e.SetName(p.namespace)
	create(t, e)
	o.waitConnected(t, p.namespace)
	p.bound = o.For(t.Context(), e)
	return p
}

// randomRules returns permissions for some of the objects, of all of them or by name.
func randomRules(random *rand.Rand, objects []client.Object) (rules []rbacv1.PolicyRule) {
	verbs := []string{"get", "list", "watch", "create", "patch", "delete"}
	for _, object := range objects {
		gvk := object.GetObjectKind().GroupVersionKind()
		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		if gvk.Kind == "Unserved" || random.IntN(3) == 0 {
			continue
		}
		rule := rbacv1.PolicyRule{APIGroups: []string{gvk.Group}, Resources: []string{plural.Resource}}
		if random.IntN(3) == 0 {
			rule.ResourceNames = []string{object.GetName()}
		}
		for _, verb := range verbs {
			if random.IntN(5) > 0 {
				rule.Verbs = append(rule.Verbs, verb)
			}
		}
		rules = append(rules, rule)
	}
	for _, rule := range []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}},
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "clusterroles"}, Verbs: []string{"get"}},
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles"}, Verbs: []string{"escalate"}},
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "clusterroles"}, Verbs: []string{"bind"}},
		{APIGroups: []string{"apps"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}},
	} {
		if random.IntN(4) == 0 {
			rules = append(rules, rule)
		}
	}
	return rules
}

// compare compares the report with what happens.
func (p *pair) compare(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	report, err := p.bound.CheckPermissions(t.Context(), clustercache.PermissionCheck{Objects: p.objects})
	g.Expect(err).NotTo(HaveOccurred(), "seed %d", p.seed)
	c, err := p.bound.GetUncachedClient(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	missing := func(i int, verbs ...string) bool {
		return slices.ContainsFunc(report.Missing, func(m clustercache.MissingPermission) bool {
			return slices.Contains(m.Objects, i) && slices.Contains(verbs, m.Verb)
		})
	}
	for i, object := range p.objects {
		gvk := object.GetObjectKind().GroupVersionKind()
		p.escalates = p.escalates || missing(i, "bind", "escalate")
		fresh := object.DeepCopyObject().(*unstructured.Unstructured)
		says := func(what string, err error, expected ...string) {
			t.Helper()
			result := outcome(err)
			switch result {
			case "forbidden":
				p.forbidden++
			case "not found":
				p.notFound++
			default:
				p.permitted++
			}
			g.Expect(expected).To(ContainElement(result), "seed %d: %s %s %s: %v\nmissing %v\nnot found %v", p.seed, what,
				gvk.Kind, object.GetName(), err, report.Missing, report.NotFound)
		}
		notFound := slices.ContainsFunc(report.NotFound, func(n clustercache.ContentNotFound) bool {
			return slices.Contains(n.Objects, i)
		})
		apply := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(fresh), client.FieldOwner("check"),
			client.ForceOwnership, client.DryRunAll)
		switch undecided := slices.ContainsFunc(report.Undecided, func(m clustercache.MissingPermission) bool {
			return slices.Contains(m.Objects, i)
		}); {
		case missing(i, "patch", "create", "bind", "escalate"):
			// The API server may look for a namespace or a role before it asks for permission to
			// create.
			// And whether it asks for that at all is not known of an object that the identity may not get.
			unseen := slices.Contains(p.there, i) && missing(i, "get") && !missing(i, "patch")
			if unseen {
				says("apply", apply, "forbidden", "ok")
			} else if notFound || isUnknown(object, p.namespace) {
				says("apply", apply, "forbidden", "not found")
			} else {
				says("apply", apply, "forbidden")
			}
		case undecided:
			g.Expect(gvk.Kind).To(Equal("RoleBinding"), "seed %d", p.seed)
			p.undecided++
		case notFound:
			says("apply", apply, "not found")
		case object.GetNamespace() == p.namespace+"-missing": // the identity may not know that
			says("apply", apply, "not found")
		default:
			says("apply", apply, "ok")
		}
		if gvk.Kind == "Unserved" {
			continue
		}
		verbs := map[string]error{
			"get":    c.Get(t.Context(), client.ObjectKeyFromObject(object), fresh),
			"delete": c.Delete(t.Context(), fresh, client.DryRunAll),
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		verbs["list"] = c.List(t.Context(), list, client.InNamespace(object.GetNamespace()), client.Limit(1))
		for verb, err := range verbs {
			if missing(i, verb) {
				says(verb, err, "forbidden")
			} else {
				says(verb, err, "ok", "not found")
			}
		}
	}
	harmless := slices.ContainsFunc(report.Missing, func(m clustercache.MissingPermission) bool { return m.Power == "" })
	g.Expect(len(report.Roles) > 0).To(Equal(harmless))
}

// isUnknown reports whether an object needs what is not there, which the identity may not know.
func isUnknown(object client.Object, namespace string) bool {
	ref, _, _ := unstructured.NestedString(object.(*unstructured.Unstructured).Object, "roleRef", "name")
	return object.GetNamespace() == namespace+"-missing" || ref == "absent"
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case isForbidden(err):
		return "forbidden"
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return "not found"
	}
	return err.Error()
}

// allowNone makes a quota admit no object of a kind to a namespace.
func allowNone(t *testing.T, namespace string, count corev1.ResourceName) {
	t.Helper()
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none-here"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{count: resource.MustParse("0")}},
	}
	create(t, quota)
	NewWithT(t).Eventually(func() corev1.ResourceList {
		NewWithT(t).Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(quota), quota)).To(Succeed())
		return quota.Status.Hard
	}).WithTimeout(testenv.Patience).Should(HaveKey(count), "until then admission does not know it")
}

// The roles of a report are exactly what was missing; then nothing is, and the content can be
// applied. The dry run finds what no review can tell, and nothing of it stays.
func TestCheckPermissionsWithDryRun(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "dry")
	allowNone(t, ns, "count/services")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "dry")
	e := extension(ns, "dry")
	g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
	bound := o.For(t.Context(), e)
	check := clustercache.PermissionCheck{
		Objects: []client.Object{
			parseContent(contentKinds[4], ns, "web"), parseContent(contentKinds[2], ns, "web"),
			parseContent(contentKinds[9], ns, "role"),
			parseContent(strings.ReplaceAll(contentKinds[0], "metadata:", "data: 5, metadata:"), ns, "wrong"),
		},
		DryRun:     true,
		FieldOwner: "check",
	}
	report, err := bound.CheckPermissions(t.Context(), check)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(report.Err()).To(MatchError(ContainSubstring("list, watch deployments.apps in namespace " + ns +
		"; create, delete, get, patch deployments.apps web in")))
	condition := clustercache.PermissionsCondition(report, nil, 1)
	g.Expect(condition.Reason).To(Equal("MissingPermissions"))
	for _, role := range report.Roles {
		create(t, role)
	}
	create(t, &rbacv1.Role{ // what has power over others is not among them
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "power"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{rbacv1.GroupName},
			Resources: []string{"roles"},
			Verbs:     []string{"create", "patch", "delete", "escalate"},
		}},
	})
	create(t, roleBinding(ns, "power", rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "dry"}))
	g.Eventually(func() []clustercache.MissingPermission {
		report, err = bound.CheckPermissions(t.Context(), check)
		g.Expect(err).NotTo(HaveOccurred())
		return report.Missing
	}).WithTimeout(testenv.Patience).Should(BeEmpty())
	var failed []string
	for _, failure := range report.Failed {
		failed = append(failed, fmt.Sprint(failure.Object, " ", failure.Err))
	}
	g.Expect(failed).To(ConsistOf(MatchRegexp("^1 .*exceeded quota"), MatchRegexp("^3 ")))
	g.Expect(clustercache.PermissionsCondition(report, nil, 1).Reason).To(Equal("Refused"))
	err = admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "role"}, &rbacv1.Role{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
}
