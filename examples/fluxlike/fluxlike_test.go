package fluxlike

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

const patience = 2 * time.Minute // more than AccessReviewInterval

// world is the operator on an API server of envtest, and the administrator's client.
type world struct {
	client.Client
	g     *WithT
	ctx   context.Context
	env   *envtest.Environment
	admin *envtest.AuthenticatedUser // for kubectl
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the test starts etcd and kube-apiserver")
	}
	g := NewWithT(t)
	env := &envtest.Environment{CRDDirectoryPaths: []string{"config/crd.yaml"}, ErrorIfCRDPathMissing: true}
	w := &world{g: g, ctx: t.Context(), env: env}
	t.Cleanup(func() { g.Expect(env.Stop()).To(Succeed()) }) // the manager has ended: its cleanup runs first
	config, err := env.Start()
	g.Expect(err).NotTo(HaveOccurred(), "KUBEBUILDER_ASSETS is the folder that setup-envtest prints")
	scheme := runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(AddToScheme(scheme)).To(Succeed())
	w.Client, err = client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	w.admin, err = env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	w.kubectl("apply", "-f", "config/rbac.yaml", "-f", "config/admission.yaml")
	w.kubectl("create", "clusterrolebinding", "operator", "--clusterrole=fluxlike-operator", "--user=operator")

	// The operator has its own role only, as in production.
	operator, err := env.AddUser(envtest.User{Name: "operator"}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	w.eventually(func() bool { return w.allows("operator", "list", GroupVersion.Group, "releases", "") }).Should(BeTrue())
	mgr, err := ctrl.NewManager(operator.Config(), manager.Options{
		Scheme:   scheme,
		NewCache: scopedcache.New,
		Metrics:  metricsserver.Options{BindAddress: "0"},
	})
	g.Expect(err).NotTo(HaveOccurred())
	skip := true // -count=2 has several controllers of one name in a process
	g.Expect(SetupWithManager(w.ctx, mgr, controller.Options{SkipNameValidation: &skip})).To(Succeed())
	managerCtx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(managerCtx) }()
	t.Cleanup(func() {
		stop()
		g.Expect(<-ended).To(Succeed())
	})
	return w
}

// kubectl runs kubectl, which setup-envtest installs too, as an administrator.
func (w *world) kubectl(args ...string) {
	kubectl, err := w.admin.Kubectl()
	w.g.Expect(err).NotTo(HaveOccurred())
	_, stderr, err := kubectl.Run(args...)
	if err != nil {
		output, _ := io.ReadAll(stderr)
		w.g.Expect(err).NotTo(HaveOccurred(), "kubectl %s: %s", strings.Join(args, " "), output)
	}
}

// allows reports whether the API server lets a user do something. It learns of changes of RBAC a
// moment later.
func (w *world) allows(user, verb, group, resource, namespace string) bool {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace,
			Verb:      verb,
			Group:     group,
			Resource:  resource,
		},
	}}
	w.g.Expect(w.Create(w.ctx, review)).To(Succeed())
	return review.Status.Allowed
}

// deployer creates a namespace with a ServiceAccount that may write ConfigMaps there.
func (w *world) deployer(namespace string) {
	w.g.Expect(w.Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	w.g.Expect(w.Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: w.at(namespace)})).To(Succeed())
	w.grant(namespace)
}

func (w *world) at(namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: DefaultServiceAccount}
}

func (w *world) grant(namespace string) {
	w.g.Expect(w.Create(w.ctx, &rbacv1.Role{
		ObjectMeta: w.at(namespace),
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}}},
	})).To(Succeed())
	w.g.Expect(w.Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: w.at(namespace),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: DefaultServiceAccount},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: DefaultServiceAccount}},
	})).
		To(Succeed())
}

func (w *world) revoke(namespace string) {
	w.g.Expect(w.Delete(w.ctx, &rbacv1.RoleBinding{ObjectMeta: w.at(namespace)})).To(Succeed())
	w.g.Expect(w.Delete(w.ctx, &rbacv1.Role{ObjectMeta: w.at(namespace)})).To(Succeed())
	user := "system:serviceaccount:" + namespace + ":" + DefaultServiceAccount
	w.eventually(func() bool { return w.allows(user, "delete", "", "configmaps", namespace) }).Should(BeFalse())
}

// release creates a Release and waits until it is released.
func (w *world) release(namespace string) client.ObjectKey {
	release := newRelease()
	release.Namespace = namespace
	w.g.Expect(w.Create(w.ctx, release)).To(Succeed())
	key := client.ObjectKeyFromObject(release)
	w.eventually(w.condition(key, "Released")).Should(HavePrefix("True Applied"))
	return key
}

func (w *world) eventually(actual any) AsyncAssertion {
	return w.g.Eventually(actual).WithTimeout(patience).WithPolling(20 * time.Millisecond)
}

// condition returns status, reason and message of a condition.
func (w *world) condition(key client.ObjectKey, conditionType string) func() string {
	return func() string {
		release := &Release{}
		if err := w.Get(w.ctx, key, release); err != nil {
			return err.Error()
		}
		if found := meta.FindStatusCondition(release.Status.Conditions, conditionType); found != nil {
			return string(found.Status) + " " + found.Reason + ": " + found.Message
		}
		return "none"
	}
}

func (w *world) content(key client.ObjectKey) func() map[string]string {
	return func() map[string]string {
		content := &corev1.ConfigMap{}
		if err := w.Get(w.ctx, key, content); err != nil {
			return map[string]string{"error": string(apierrors.ReasonForError(err))}
		}
		return content.Data
	}
}

func (w *world) isGone(key client.ObjectKey) func() bool {
	return func() bool { return apierrors.IsNotFound(w.Get(w.ctx, key, &Release{})) }
}

// The test follows Releases through their lives: the default ServiceAccount, another one, drift,
// and deletions, also those where the identity is gone first.
func TestReleases(t *testing.T) {
	w := newWorld(t)
	g := w.g
	hello := map[string]string{"hello": "world"}

	w.deployer("shop")
	key := w.release("shop")
	g.Expect(w.content(key)()).To(Equal(hello))
	drifted := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Data:       map[string]string{"hello": "moon"},
	}
	g.Expect(w.Update(w.ctx, drifted)).To(Succeed())
	w.eventually(w.content(key)).Should(Equal(hello), "the operator repairs drift")
	g.Expect(w.Delete(w.ctx, drifted)).To(Succeed())
	w.eventually(w.content(key)).Should(Equal(hello))

	name := func(account string) {
		g.Expect(w.Patch(w.ctx, &Release{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}},
			client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"serviceAccountName":"`+account+`"}}`)))).
			To(Succeed())
	}

	// A ServiceAccount that may write and not watch: nothing is written of which changes would go
	// unnoticed.
	w.kubectl("-n", "shop", "create", "serviceaccount", "blind")
	w.kubectl("-n", "shop", "create", "role", "blind", "--resource=configmaps", "--verb=create,patch,delete")
	w.kubectl("-n", "shop", "create", "rolebinding", "blind", "--role=blind", "--serviceaccount=shop:blind")
	name("blind")
	w.eventually(w.condition(key, "Released")).Should(And(HavePrefix("False Forbidden"),
		ContainSubstring("system:serviceaccount:shop:blind"), ContainSubstring("list, watch configmaps in namespace shop")))

	// Another ServiceAccount, without permissions.
	w.kubectl("-n", "shop", "create", "serviceaccount", "weak")
	name("weak")
	w.eventually(w.condition(key, "Released")).Should(And(HavePrefix("False Forbidden"),
		ContainSubstring("system:serviceaccount:shop:weak")))
	name("")
	w.eventually(w.condition(key, "Released")).Should(HavePrefix("True Applied"))
	release := newRelease()
	release.Namespace = key.Namespace
	g.Expect(w.Delete(w.ctx, release)).To(Succeed())
	w.eventually(w.isGone(key)).Should(BeTrue())
	g.Expect(w.content(key)()).To(HaveKeyWithValue("error", "NotFound"), "the finalizer deleted the content")

	// What is gone before the Release: each is visible, each has a way out, nothing is deleted by the
	// operator's own permissions.
	for what, tc := range map[string]struct {
		remove, restore func(namespace string)
		conditionType   string
		condition       string
	}{
		"serviceaccount": {
			remove: func(ns string) {
				g.Expect(w.Delete(w.ctx, &corev1.ServiceAccount{ObjectMeta: w.at(ns)})).To(Succeed())
			},
			restore: func(ns string) {
				g.Expect(w.Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: w.at(ns)})).To(Succeed())
			},
			conditionType: "Connected",
			condition:     "False ServiceAccountNotFound",
		},
		"role": {remove: w.revoke, restore: w.grant, conditionType: "Released", condition: "False Forbidden"},
		"reference": {
			remove: func(ns string) { w.patch(ns, `{"spec":{"serviceAccountName":"typo"}}`) },
			restore: func(ns string) {
				w.patch(ns, `{"metadata":{"annotations":{"`+OrphanAnnotation+`":"true"}}}`)
			},
			conditionType: "Connected",
			condition:     "False ServiceAccountNotFound",
		},
	} {
		w.deployer(what)
		key := w.release(what)
		tc.remove(what)
		if tc.conditionType == "Connected" { // before the deletion, which a connection of before could still do
			w.eventually(w.condition(key, "Connected")).Should(HavePrefix(tc.condition), what)
		}
		release := newRelease()
		release.Namespace = what
		g.Expect(w.Delete(w.ctx, release)).To(Succeed())
		w.eventually(w.condition(key, tc.conditionType)).Should(HavePrefix(tc.condition), what)
		w.eventually(w.condition(key, "Released")).Should(ContainSubstring(OrphanAnnotation), "the message has a way out")
		g.Expect(w.content(key)()).To(Equal(hello), "%s: nothing deleted what the identity may not delete", what)
		tc.restore(what)
		w.eventually(w.isGone(key)).Should(BeTrue(), what)
		if what == "reference" {
			g.Expect(w.content(key)()).To(Equal(hello), "left on purpose")
		} else {
			g.Expect(w.content(key)()).To(HaveKeyWithValue("error", "NotFound"))
		}
	}
}

func (w *world) patch(namespace, patch string) {
	w.g.Expect(w.Patch(w.ctx, &Release{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: greeting.Name}},
		client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
}

// The policy lets users write Releases of ServiceAccounts that they may impersonate, and the
// default counts as named.
func TestPolicy(t *testing.T) {
	w := newWorld(t)
	g := w.g
	w.deployer("shop")
	g.Expect(w.Create(w.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "author"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{GroupVersion.Group},
			Resources: []string{"releases"},
			Verbs:     []string{"*"},
		}},
	})).To(Succeed())
	w.kubectl("create", "clusterrolebinding", "author", "--clusterrole=author", "--user=author")
	user, err := w.env.AddUser(envtest.User{Name: "author"}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	author, err := client.New(user.Config(), client.Options{Scheme: w.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	create := func() error { return author.Create(w.ctx, newRelease(), client.DryRunAll) }
	w.eventually(create).Should(MatchError(ContainSubstring(`may not act as ServiceAccount "shop/deployer"`)),
		"once the policy has come into effect")
	w.kubectl("-n", "shop", "create", "role", "as-deployer", "--verb=impersonate", "--resource=serviceaccounts",
		"--resource-name=deployer")
	w.kubectl("-n", "shop", "create", "rolebinding", "as-deployer", "--role=as-deployer", "--user=author")
	w.eventually(create).Should(Succeed())
}
