package serviceprovider

import (
	"context"
	"strings"
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

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/platformactor"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	sp "github.com/latchkey-dev/latchkey/serviceprovider"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
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
	s := &service[*v1alpha1.Mailbox]{}
	used := make(chan string, 100)
	s.createOrUpdate = func(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		found := &v1alpha1.Mailbox{}
		if err := onboarding.Get(ctx, client.ObjectKeyFromObject(m), found); err != nil {
			return ctrl.Result{}, err
		}
		used <- strings.TrimPrefix(found.Annotations["serviceprovider.latchkey.dev/used"], string(found.UID))
		return keep(ctx, m, c, clusters.MCPCluster)
	}
	start(t, s, func(o *options) {
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
	g.Expect(<-used).To(Equal("/mcp"), "it is on record that something may be left, before anything is")
}

// A condition of another controller stays, also if it is written while the provider reconciles.
func TestStatus(t *testing.T) {
	g := NewWithT(t)
	foreign := metav1.Condition{
		Type:               "Backup",
		Status:             metav1.ConditionTrue,
		Reason:             "Done",
		LastTransitionTime: metav1.Now(),
	}
	s := &service[*v1alpha1.Mailbox]{}
	s.createOrUpdate = func(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		other := &v1alpha1.Mailbox{}
		if err := onboarding.Get(ctx, client.ObjectKeyFromObject(m), other); err != nil {
			return ctrl.Result{}, err
		}
		condition := foreign
		condition.ObservedGeneration = m.Generation // a change for each spec
		meta.SetStatusCondition(&other.Status.Conditions, condition)
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
	before := s.settled(t, "createOrUpdate", m)
	written := count()
	annotate(t, m, sp.OperationAnnotation, sp.OperationReconcile)
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(BeNumerically(">", before))
	barrier(t, "status")
	g.Expect(count()).To(Equal(written), "a status that did not change is not written")
}

func TestOperationAnnotation(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	start(t, s)
	m := &v1alpha1.Mailbox{ObjectMeta: metav1.ObjectMeta{
		Namespace:   "default",
		Name:        "operation",
		Annotations: map[string]string{sp.OperationAnnotation: sp.OperationIgnore},
	}}
	orderObject(t, m)
	barrier(t, "operation")
	g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	g.Expect(m.Finalizers).To(BeEmpty())
	g.Expect(m.Status.Conditions).To(BeEmpty())

	operation := func(value string) { annotate(t, m, sp.OperationAnnotation, value) }
	operation("")
	isReady(t, m)
	before := s.settled(t, "createOrUpdate", m)
	operation(sp.OperationReconcile)
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(BeNumerically(">", before))
	g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	g.Expect(m.Annotations).NotTo(HaveKey(sp.OperationAnnotation), "removed first")
	g.Expect(s.settled(t, "createOrUpdate", m)).To(Equal(before+1), "the removal causes no reconcile")

	operation(sp.OperationIgnore)
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	barrier(t, "operation-2")
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
	before := s.settled(t, "createOrUpdate", m)
	remove()
	barrier(t, "poll")
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
	start(t, s, func(o *options) { o.config.PollInterval.Duration = time.Hour }) // RequeueAfter takes precedence
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
		case "other connection":
			return ctrl.Result{}, &clustercache.NotConnectedError{Reason: clustercache.ReasonUnreachable}
		}
		return keep(ctx, m, c, clusters.MCPCluster)
	}
	p := start(t, s)
	m := order(t, "errors")
	for _, step := range []struct{ mode, status string }{
		{"error", "Progressing ReconcileError: Internal error occurred"},
		{"reported", "Progressing NoSpace: the disk is full"},
		{"panic", "Progressing ReconcileError: the provider panicked: see its log"},
		{"good", "Ready Ready"},
		{"other connection", "Progressing ReconcileError: extension : not connected"}, // not one that we watch
		{"good", "Ready Ready"},
		{"error", "Progressing ReconcileError: Internal error occurred"},
	} {
		mu.Lock()
		mode = step.mode
		mu.Unlock()
		annotate(t, m, sp.OperationAnnotation, sp.OperationReconcile)
		eventually(t, status(m)).Should(HavePrefix(step.status))
	}
	mu.Lock()
	mode = "good"
	mu.Unlock()
	isReady(t, m) // an error is tried again by itself
	NewWithT(t).Expect(reconcileErrors(t, p.name)).To(BeNumerically(">=", 5))
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
	grantOnly(t, p, "denied-barrier")
	barrier(t, "denied")
	g.Expect(reconcileErrors(t, p.name)).To(Equal(before), "a denial is no error loop")
	g.Expect(s.count("createOrUpdate", m)).To(BeZero())
	actor.Judge(nil)
	isReady(t, m)

	// A denial after a grant holds back CreateOrUpdate, and not the connection.
	count, epoch := s.settled(t, "createOrUpdate", m), p.mcp(t, m).State(t.Context()).Epoch
	judge(t, func(client.Object) platformactor.Verdict { return platformactor.Deny })
	edit(t, platform, p.accessRequest(t, m, "mcp"), func(r *clustersv1alpha1.AccessRequest) {
		r.Spec.TTL = &metav1.Duration{Duration: 1 << 50}
	})
	eventually(t, status(m)).Should(HavePrefix("Progressing AccessDenied: AccessRequest"))
	actor.Judge(nil)
	isReady(t, m)
	g.Expect(p.mcp(t, m).State(t.Context()).Epoch).To(Equal(epoch))
	g.Expect(s.settled(t, "createOrUpdate", m)).To(BeNumerically(">", count))
}

// A workload cluster may be denied, too.
func TestWorkloadDenied(t *testing.T) {
	s := &service[*v1alpha1.Mailbox]{}
	start(t, s, withWorkload)
	judge(t, func(object client.Object) platformactor.Verdict {
		if request, ok := object.(*clustersv1alpha1.ClusterRequest); ok && request.Spec.Purpose == "workload" {
			return platformactor.Deny
		}
		return platformactor.Grant
	})
	m := order(t, "workload-denied")
	eventually(t, status(m)).Should(And(HavePrefix("Progressing AccessDenied: ClusterRequest"),
		ContainSubstring("the quota is used up")))
	NewWithT(t).Expect(s.count("createOrUpdate", m)).To(BeZero())
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
	endOf(t).objects = append(endOf(t).objects, without)
	eventually(t, status(without)).Should(ContainSubstring("ClusterRequest " + tenantNamespace(without) +
		"/pending-nowhere does not exist"))
	g.Expect(onboarding.Delete(t.Context(), without)).To(Succeed())
	eventually(t, status(without)).Should(Equal("NotFound"), "nothing was made, so nothing is left to remove")
}

// grantOnly has the platform answer only the requests for one object.
func grantOnly(t *testing.T, p *process, name string) {
	t.Helper()
	judge(t, func(object client.Object) platformactor.Verdict {
		if isFor(object, p.name) && object.GetAnnotations()["openmcp.cloud/onboarding-name"] != name {
			return platformactor.Hold
		}
		return platformactor.Grant
	})
}

// judge sets the platform's policy until the end of the test.
func judge(t *testing.T, f func(client.Object) platformactor.Verdict) {
	t.Helper()
	endOf(t) // whose objects need a platform that grants
	actor.Judge(f)
	t.Cleanup(func() { actor.Judge(nil) })
}

// isFor reports whether a request is a provider's.
func isFor(object client.Object, provider string) bool {
	return object.GetLabels()["openmcp.cloud/managed-by"] == provider
}
