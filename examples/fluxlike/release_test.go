package fluxlike

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
)

// unit is the reconciler with fakes: the operator's own client, the tenants' cluster, and the
// connections between them.
type unit struct {
	*reconciler
	t      *testing.T
	own    client.Client
	tenant client.WithWatch
	cc     *fake.Cache
	events *fake.Controller
}

var greeting = client.ObjectKey{Namespace: "shop", Name: "greeting"}

func newUnit(t *testing.T, release *Release) *unit {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	NewWithT(t).Expect(AddToScheme(scheme)).To(Succeed())
	u := &unit{
		t:      t,
		events: fake.NewController(t),
		cc:     fake.NewFakeEmptyCache(),
		own: clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&Release{}).
			WithObjects(release).Build(),
		tenant: clientfake.NewClientBuilder().WithScheme(scheme).Build(),
	}
	t.Cleanup(u.cc.Close)
	u.reconciler = &reconciler{client: u.own, connections: u.cc, controller: u.events}
	return u
}

func newRelease() *Release {
	return &Release{
		ObjectMeta: metav1.ObjectMeta{Namespace: greeting.Namespace, Name: greeting.Name},
		Spec:       ReleaseSpec{Data: map[string]string{"hello": "world"}},
	}
}

// reconcile reconciles once. Only what is Forbidden is tried again without an event.
func (u *unit) reconcile() {
	u.t.Helper()
	result, err := u.Reconcile(u.t.Context(), ctrl.Request{NamespacedName: greeting})
	NewWithT(u.t).Expect(err).NotTo(HaveOccurred())
	release := &Release{}
	NewWithT(u.t).Expect(client.IgnoreNotFound(u.own.Get(u.t.Context(), greeting, release))).To(Succeed())
	released := meta.FindStatusCondition(release.Status.Conditions, "Released")
	NewWithT(u.t).Expect(result.RequeueAfter > 0).To(Equal(released != nil && released.Reason == "Forbidden"))
}

// next waits for the request that an event leads to.
func (u *unit) next() {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	request, err := u.events.Next(ctx)
	NewWithT(u.t).Expect(err).NotTo(HaveOccurred())
	NewWithT(u.t).Expect(request.NamespacedName).To(Equal(greeting))
}

// condition returns status and reason of a condition of the Release.
func (u *unit) condition(conditionType string) string {
	u.t.Helper()
	found := u.find(conditionType)
	return string(found.Status) + " " + found.Reason
}

func (u *unit) message(conditionType string) string {
	u.t.Helper()
	return u.find(conditionType).Message
}

func (u *unit) find(conditionType string) metav1.Condition {
	u.t.Helper()
	release := &Release{}
	NewWithT(u.t).Expect(u.own.Get(u.t.Context(), greeting, release)).To(Succeed())
	if found := meta.FindStatusCondition(release.Status.Conditions, conditionType); found != nil {
		return *found
	}
	return metav1.Condition{}
}

func (u *unit) content() map[string]string {
	content := &corev1.ConfigMap{}
	if u.tenant.Get(u.t.Context(), greeting, content) != nil {
		return nil
	}
	return content.Data
}

func TestServiceAccountOf(t *testing.T) {
	g := NewWithT(t)
	g.Expect(serviceAccountOf(newRelease())).To(HaveField("Name", DefaultServiceAccount))
	named := newRelease()
	named.Spec.ServiceAccountName = "other"
	g.Expect(serviceAccountOf(named)).To(And(HaveField("Name", "other"), HaveField("Namespace", "shop")))
}

func TestReconcile(t *testing.T) {
	g := NewWithT(t)
	u := newUnit(t, newRelease())
	u.reconcile()
	g.Expect(u.condition("Connected")).To(Equal("False NotStarted"))
	g.Expect(u.condition("Released")).To(Equal("Unknown NotConnected"))

	u.cc.Connect(greeting, u.tenant)
	u.reconcile()
	g.Expect(u.content()).To(Equal(map[string]string{"hello": "world"}))
	g.Expect(u.condition("Released")).To(Equal("True Applied"))
	u.next() // the creation

	drifted := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: greeting.Namespace, Name: greeting.Name},
		Data:       map[string]string{"hello": "moon"},
	}
	g.Expect(u.tenant.Update(t.Context(), drifted)).To(Succeed())
	u.next()
	u.reconcile()
	g.Expect(u.content()).To(Equal(map[string]string{"hello": "world"}))

	u.cc.MakeStale(greeting)
	u.reconcile()
	g.Expect(u.condition("Released")).To(Equal("True Applied"), "another reconcile follows and reports")
	u.cc.Disconnect(greeting, clustercache.ReasonServiceAccountNotFound)
	u.reconcile()
	g.Expect(u.condition("Connected")).To(Equal("False ServiceAccountNotFound"))
}

// A missing permission is in the condition, and is no error: the extension source calls when the
// permission is granted.
func TestMissingPermissions(t *testing.T) {
	configMaps := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	for name, tc := range map[string]struct {
		forbid, allow func(u *unit)
		missing       string
	}{
		"to write": {
			forbid:  func(u *unit) { u.cc.ForbidWrites(greeting, configMaps, greeting.Namespace) },
			allow:   func(u *unit) { u.cc.AllowWrites(greeting, configMaps, greeting.Namespace) },
			missing: "create, delete, patch configmaps greeting in namespace shop",
		},
		"to watch": {
			forbid:  func(u *unit) { u.cc.Forbid(greeting, configMaps, greeting.Namespace) },
			allow:   func(u *unit) { u.cc.Allow(greeting, configMaps, greeting.Namespace) },
			missing: "list, watch configmaps in namespace shop",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			u := newUnit(t, newRelease())
			tc.forbid(u)
			u.cc.Connect(greeting, u.tenant)
			g.Expect(u.events.Watch(u.cc.GetExtensionSource(name, clustercache.EnqueueExtension))).To(Succeed())
			u.next()
			u.reconcile()
			g.Expect(u.condition("Connected")).To(Equal("True Connected"))
			g.Expect(u.condition("Released")).To(Equal("False Forbidden"))
			g.Expect(u.message("Released")).To(ContainSubstring(tc.missing))
			g.Expect(u.content()).To(BeNil())
			tc.allow(u)
			u.next()
			u.reconcile()
			g.Expect(u.condition("Released")).To(Equal("True Applied"))
		})
	}
}

// What a quota refuses is Forbidden too, and no event tells when it would be allowed.
func TestQuota(t *testing.T) {
	g := NewWithT(t)
	u := newUnit(t, newRelease())
	var refusal error = apierrors.NewForbidden(corev1.Resource("configmaps"), greeting.Name, errors.New("exceeded quota"))
	u.cc.Connect(greeting, interceptor.NewClient(u.tenant, interceptor.Funcs{
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return refusal
		},
	}))
	u.reconcile()
	g.Expect(u.condition("Released")).To(Equal("False Forbidden"))
	g.Expect(u.message("Released")).To(ContainSubstring("exceeded quota"))
	// Also if a permission is missing that has nothing to do with it.
	u.cc.ForbidWrites(greeting, corev1.SchemeGroupVersion.WithKind("ConfigMap"), greeting.Namespace, "delete")
	u.reconcile()
	g.Expect(u.message("Released")).To(And(ContainSubstring("exceeded quota"), ContainSubstring("delete configmaps")))
	// Any other error is tried again at once.
	refusal = apierrors.NewInternalError(errors.New("etcd"))
	_, err := u.Reconcile(t.Context(), ctrl.Request{NamespacedName: greeting})
	g.Expect(err).To(MatchError(refusal))
}

func TestDeletion(t *testing.T) {
	deleted := func() *Release {
		release := newRelease()
		release.Finalizers = []string{finalizer}
		release.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		return release
	}
	exists := func(u *unit) bool { return u.own.Get(t.Context(), greeting, &Release{}) == nil }
	t.Run("as the identity", func(t *testing.T) {
		g := NewWithT(t)
		u := newUnit(t, deleted())
		u.cc.Connect(greeting, u.tenant)
		g.Expect(u.tenant.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: greeting.Namespace,
				Name:      greeting.Name,
			},
			Data: map[string]string{"hello": "world"},
		})).To(Succeed())
		u.reconcile()
		g.Expect(u.content()).To(BeNil())
		g.Expect(exists(u)).To(BeFalse())
	})
	t.Run("the identity is gone", func(t *testing.T) {
		g := NewWithT(t)
		u := newUnit(t, deleted())
		u.reconcile()
		g.Expect(exists(u)).To(BeTrue())
		g.Expect(u.condition("Connected")).To(HavePrefix("False"), "a person sees why it is Terminating")
		release := &Release{}
		g.Expect(u.own.Get(t.Context(), greeting, release)).To(Succeed())
		release.Annotations = map[string]string{OrphanAnnotation: "true"}
		g.Expect(u.own.Update(t.Context(), release)).To(Succeed())
		u.reconcile()
		g.Expect(exists(u)).To(BeFalse())
	})
}
