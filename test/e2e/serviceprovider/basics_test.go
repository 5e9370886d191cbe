package serviceprovider

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	"github.com/latchkey-dev/latchkey/internal/platformactor"
	sp "github.com/latchkey-dev/latchkey/serviceprovider"
)

// observedAccess records the finalizers that an object has when its access is reconciled.
type observedAccess struct {
	sp.ClusterAccessProvider
	mu         sync.Mutex
	finalizers [][]string // guarded by mu
}

func (a *observedAccess) Unwrap() sp.ClusterAccessProvider { return a.ClusterAccessProvider }

func (a *observedAccess) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	found := &v1alpha1.Mailbox{}
	if err := onboarding.Get(ctx, request.NamespacedName, found); err != nil {
		return reconcile.Result{}, err
	}
	a.mu.Lock()
	a.finalizers = append(a.finalizers, found.Finalizers)
	a.mu.Unlock()
	return a.ClusterAccessProvider.Reconcile(ctx, request)
}

// The finalizer is on the object before anything is requested, on the platform or remotely.
func TestFinalizerFirst(t *testing.T) {
	g := NewWithT(t)
	access := &observedAccess{}
	start(t, &service[*v1alpha1.Mailbox]{}, func(o *options) {
		o.wrap = func(a sp.ClusterAccessProvider) sp.ClusterAccessProvider {
			access.ClusterAccessProvider = a
			return access
		}
	})
	m := order(t, "finalizer-first")
	isReady(t, m)
	access.mu.Lock()
	defer access.mu.Unlock()
	g.Expect(access.finalizers).NotTo(BeEmpty())
	g.Expect(access.finalizers).To(HaveEach(Equal([]string{m.Finalizer()})))
}

// A condition of another controller stays, also if it is written while the provider reconciles.
func TestStatus(t *testing.T) {
	g := NewWithT(t)
	foreign := metav1.Condition{Type: "Backup", Status: metav1.ConditionTrue, Reason: "Done",
		LastTransitionTime: metav1.Now()}
	s := &service[*v1alpha1.Mailbox]{}
	s.createOrUpdate = func(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		other := &v1alpha1.Mailbox{}
		if err := onboarding.Get(ctx, client.ObjectKeyFromObject(m), other); err != nil {
			return ctrl.Result{}, err
		}
		foreign.ObservedGeneration = m.Generation // a change in each reconcile
		meta.SetStatusCondition(&other.Status.Conditions, foreign)
		if err := onboarding.Status().Update(ctx, other); err != nil {
			return ctrl.Result{}, err
		}
		return keep(ctx, m, c, clusters.MCPCluster)
	}
	p := start(t, s)
	m := order(t, "status")
	isReady(t, m)
	edit(t, onboarding, m, func(m *v1alpha1.Mailbox) { m.Spec.Address = "other" })
	eventually(t, func() int64 {
		g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		return m.Status.ObservedGeneration
	}).Should(Equal(int64(2)))
	g.Expect(m.Status.Phase).To(Equal(sp.StatusPhaseReady))
	for _, wanted := range []metav1.Condition{foreign,
		{Type: sp.ServiceProviderConditionReady, Status: metav1.ConditionTrue, Reason: sp.ReasonReady}} {
		found := meta.FindStatusCondition(m.Status.Conditions, wanted.Type)
		g.Expect(found).NotTo(BeNil(), wanted.Type)
		g.Expect(found.Status).To(Equal(wanted.Status))
		g.Expect(found.Reason).To(Equal(wanted.Reason))
		g.Expect(found.ObservedGeneration).To(Equal(int64(2)), wanted.Type)
	}
	count := func() int { return len(sent(t, onboarding, p.name, "patch", "mailboxes/status", m.Name)) }
	written, before := count(), s.count("createOrUpdate", m)
	annotate(t, m, sp.OperationAnnotation, sp.OperationReconcile)
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(Equal(before + 1))
	isReady(t, order(t, "status-other"))
	g.Expect(count()).To(Equal(written), "a status that did not change is not written")
}

func TestOperationAnnotation(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	start(t, s)
	m := &v1alpha1.Mailbox{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "operation",
		Annotations: map[string]string{sp.OperationAnnotation: sp.OperationIgnore}}}
	orderObject(t, m)
	isReady(t, order(t, "operation-other")) // long enough for a reconcile of the first
	g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	g.Expect(m.Finalizers).To(BeEmpty())
	g.Expect(m.Status.Conditions).To(BeEmpty())

	operation := func(value string) { annotate(t, m, sp.OperationAnnotation, value) }
	operation("")
	isReady(t, m)
	before := s.count("createOrUpdate", m)
	operation(sp.OperationReconcile)
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(Equal(before + 1))
	eventually(t, func() map[string]string {
		g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		return m.Annotations
	}).ShouldNot(HaveKey(sp.OperationAnnotation))

	operation(sp.OperationIgnore)
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	isReady(t, order(t, "operation-third"))
	g.Expect(s.count("delete", m)).To(BeZero(), "a deletion waits, too")
	operation("")
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(s.count("delete", m)).To(Equal(1))
}

func TestPollInterval(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	m := order(t, "poll")
	isReady(t, m)
	remove := func() { g.Expect(remote.Delete(t.Context(), content(m.Name))).To(Succeed()) }
	exists := func() error { return remote.Get(t.Context(), client.ObjectKeyFromObject(content(m.Name)), content("")) }
	before := s.count("createOrUpdate", m)
	remove()
	isReady(t, order(t, "poll-other"))
	g.Expect(s.count("createOrUpdate", m)).To(Equal(before), "an interval of 0 never polls")
	g.Expect(exists()).To(MatchError(apierrors.IsNotFound, "not repaired"))

	polling := defaultConfig
	polling.PollInterval = metav1.Duration{Duration: 100 * time.Millisecond}
	setConfig(t, p.name, polling)
	eventually(t, exists).Should(Succeed())
	remove()
	eventually(t, exists).Should(Succeed(), "repaired by a poll")
}

func TestRequeueAfter(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	proceed := make(chan struct{})
	s.createOrUpdate = func(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		select {
		case <-proceed:
			return keep(ctx, m, c, clusters.MCPCluster)
		default:
			sp.StatusProgressing(m, "Copying", "the mails are being copied")
			return ctrl.Result{RequeueAfter: 50 * time.Millisecond}, nil
		}
	}
	start(t, s)
	m := order(t, "requeue")
	eventually(t, status(m)).Should(Equal("Progressing Copying: the mails are being copied"))
	before := s.count("createOrUpdate", m)
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(BeNumerically(">", before+2))
	g.Expect(status(m)()).To(HavePrefix("Progressing Copying"))
	close(proceed)
	isReady(t, m)
}

// What CreateOrUpdate returns or does is visible where a person looks.
func TestErrorsOfTheAuthor(t *testing.T) {
	s := &service[*v1alpha1.Mailbox]{}
	var mu sync.Mutex
	mode := "error"
	s.createOrUpdate = func(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		switch mode {
		case "error":
			return ctrl.Result{}, apierrors.NewInternalError(context.DeadlineExceeded)
		case "reported":
			sp.StatusProgressing(m, "NoSpace", "the disk is full")
			return ctrl.Result{}, apierrors.NewInternalError(context.DeadlineExceeded)
		case "panic":
			panic("the tenant's data")
		}
		return keep(ctx, m, c, clusters.MCPCluster)
	}
	start(t, s)
	m := order(t, "errors")
	for _, step := range []struct{ mode, status string }{
		{"error", "Progressing ReconcileError: Internal error occurred"},
		{"reported", "Progressing NoSpace: the disk is full"},
		{"panic", "Progressing ReconcileError: the provider panicked: see its log"},
		{"good", "Ready Ready"},
		{"error", "Progressing ReconcileError: Internal error occurred"},
		{"good", "Ready Ready"},
	} {
		mu.Lock()
		mode = step.mode
		mu.Unlock()
		annotate(t, m, sp.OperationAnnotation, sp.OperationReconcile)
		eventually(t, status(m)).Should(HavePrefix(step.status))
	}
}

func TestDenied(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	judge(t, func(object client.Object) platformactor.Verdict {
		if isFor(object, p.name) {
			return platformactor.Deny
		}
		return platformactor.Grant
	})
	m := order(t, "denied")
	eventually(t, status(m)).Should(HavePrefix("Progressing AccessDenied: AccessRequest"))
	g.Expect(status(m)()).To(ContainSubstring("the quota is used up"))
	before := reconcileErrors(t, p.name)
	isReady(t, order2(t, p, "denied-other"))
	g.Expect(reconcileErrors(t, p.name)).To(Equal(before), "a denial is no error loop")
	g.Expect(s.count("createOrUpdate", m)).To(BeZero())
	actor.Judge(nil)
	isReady(t, m)
}

func TestPending(t *testing.T) {
	g := NewWithT(t)
	p := start(t, &service[*v1alpha1.Mailbox]{})
	judge(t, func(client.Object) platformactor.Verdict { return platformactor.Hold })
	m := order(t, "pending")
	request := p.accessRequest(t, m, "mcp")
	since := request.CreationTimestamp.UTC().Format(time.RFC3339)
	eventually(t, status(m)).Should(Equal("Progressing AccessPending: AccessRequest " + request.Namespace + "/" +
		request.Name + " is pending, since " + since))
	actor.Judge(nil)
	isReady(t, m)

	without := &v1alpha1.Mailbox{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pending-nowhere"}}
	g.Expect(onboarding.Create(t.Context(), without)).To(Succeed())
	eventually(t, status(without)).Should(ContainSubstring("ClusterRequest " + tenantNamespace(without) +
		"/pending-nowhere does not exist"))
	g.Expect(onboarding.Delete(t.Context(), without)).To(Succeed())
	eventually(t, status(without)).Should(Equal("NotFound"), "nothing was made, so nothing is left to remove")
}

// order2 is order for an object whose access is granted although that of others is not.
func order2(t *testing.T, p *process, name string) *v1alpha1.Mailbox {
	t.Helper()
	judge(t, func(object client.Object) platformactor.Verdict {
		if isFor(object, p.name) && object.GetAnnotations()["openmcp.cloud/onboarding-name"] != name {
			return platformactor.Hold
		}
		return platformactor.Grant
	})
	return order(t, name)
}

// judge sets the platform's policy until the end of the test.
func judge(t *testing.T, f func(client.Object) platformactor.Verdict) {
	t.Helper()
	actor.Judge(f)
	t.Cleanup(func() { actor.Judge(nil) })
}

// isFor reports whether a request is a provider's.
func isFor(object client.Object, provider string) bool {
	return object.GetLabels()["openmcp.cloud/managed-by"] == provider
}
