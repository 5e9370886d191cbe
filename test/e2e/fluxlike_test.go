package e2e

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/examples/fluxlike"
)

// The test deletes a whole namespace, with the ServiceAccount of the Release in it. Whichever is
// deleted first, nothing stays Terminating without a reason that a person can see, and there is a
// way out. The example's own test has no kube-controller-manager, which deletes what is in a
// namespace.
func TestNamespaceOfARelease(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	for _, file := range []string{"crd", "rbac"} {
		content, err := os.ReadFile("../../examples/fluxlike/config/" + file + ".yaml")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = cp.KubectlInput(ctx, string(content), "apply", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	for _, args := range []string{
		"wait --for=condition=Established --timeout=60s crd/releases.fluxlike.example.com",
		"create clusterrolebinding fluxlike --clusterrole=fluxlike-operator --user=fluxlike",
		"create namespace whole",
		"-n whole create serviceaccount deployer",
		"-n whole create role deployer --resource=configmaps --verb=create,patch,list,watch,delete",
		"-n whole create rolebinding deployer --role=deployer --serviceaccount=whole:deployer",
	} {
		_, err := cp.Kubectl(ctx, strings.Fields(args)...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	t.Cleanup(func() {
		ctx := context.Background()
		g.Expect(admin.Delete(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "fluxlike"}})).To(Succeed())
	})
	scheme := runtime.NewScheme()
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	g.Expect(fluxlike.AddToScheme(scheme)).To(Succeed())
	c, err := client.New(cp.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	config, err := cp.UserConfig("fluxlike")
	g.Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(config,
		manager.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	skip := true // -count=2 has several controllers of one name in a process
	g.Expect(fluxlike.SetupWithManager(ctx, mgr, controller.Options{SkipNameValidation: &skip})).To(Succeed())
	managerCtx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(managerCtx) }()
	t.Cleanup(func() {
		stop()
		g.Expect(<-ended).To(Succeed())
	})

	release := &fluxlike.Release{
		ObjectMeta: metav1.ObjectMeta{Namespace: "whole", Name: "greeting"},
		Spec:       fluxlike.ReleaseSpec{Data: map[string]string{"hello": "world"}},
	}
	key := client.ObjectKeyFromObject(release)
	g.Expect(c.Create(ctx, release)).To(Succeed())
	condition := func(conditionType string) metav1.Condition {
		found := &fluxlike.Release{}
		if err := c.Get(ctx, key, found); err != nil {
			return metav1.Condition{Reason: string(apierrors.ReasonForError(err))}
		}
		if condition := meta.FindStatusCondition(found.Status.Conditions, conditionType); condition != nil {
			return *condition
		}
		return metav1.Condition{}
	}
	eventually := func(actual any) AsyncAssertion {
		return g.Eventually(actual).WithTimeout(patience).WithPolling(20 * time.Millisecond)
	}
	eventually(func() string { return condition("Released").Reason }).Should(Equal("Applied"))

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "whole"}}
	g.Expect(c.Delete(ctx, namespace)).To(Succeed())
	eventually(func() bool {
		connected := condition("Connected").Reason
		return connected == "NotFound" || connected == "ServiceAccountNotFound" &&
			strings.Contains(condition("Released").Message, fluxlike.OrphanAnnotation)
	}).Should(BeTrue())
	g.Expect(client.IgnoreNotFound(c.Patch(ctx, release, client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"`+fluxlike.OrphanAnnotation+`":"true"}}}`))))).To(Succeed())
	eventually(func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))
	}).Should(BeTrue())
}
