package serviceprovider

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/platformactor"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	sp "github.com/latchkey-dev/latchkey/serviceprovider"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// gate holds back what a test has not opened.
type gate struct {
	mu   sync.Mutex
	open map[string]bool // guarded by mu
}

func (g *gate) set(name string, open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = map[string]bool{}
	}
	g.open[name] = open
}

func (g *gate) isOpen(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open[name]
}

// stages of a deletion: what the test lets end, one after the other.
const (
	stageDomain  = "domain"
	stageAccess  = "access"
	stageCluster = "cluster"
)

// holdDeletion holds a provider's deletions back until the stages are open.
func holdDeletion(t *testing.T, provider string, stages *gate) {
	t.Helper()
	judge(t, func(object client.Object) platformactor.Verdict {
		stage := stageAccess
		if _, ok := object.(*clustersv1alpha1.ClusterRequest); ok {
			stage = stageCluster
		}
		if isFor(object, provider) && object.GetDeletionTimestamp() != nil && !stages.isOpen(stage) {
			return platformactor.Hold
		}
		return platformactor.Grant
	})
}

// heldService is a service whose Delete ends when the stage is open. The end of the test opens all.
func heldService(t *testing.T, stages *gate) *service[*v1alpha1.Mailbox] {
	t.Helper()
	endOf(t)
	t.Cleanup(func() {
		for _, stage := range []string{stageDomain, stageAccess, stageCluster} {
			stages.set(stage, true)
		}
	})
	s := &service[*v1alpha1.Mailbox]{}
	s.delete = func(ctx context.Context, m *v1alpha1.Mailbox, _ *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		if !stages.isOpen(stageDomain) {
			return ctrl.Result{RequeueAfter: 20 * time.Millisecond}, nil
		}
		return ctrl.Result{}, client.IgnoreNotFound(clusters.MCPCluster.Client().Delete(ctx, content(m.Name)))
	}
	return s
}

// requestsLeft returns "access", "cluster" for each of a provider's requests for an object, with a
// star if it is being deleted.
func requestsLeft(t *testing.T, p *process, object client.Object) []string {
	t.Helper()
	left := []string{}
	add := func(name string, request client.Object) {
		if request.GetLabels()["openmcp.cloud/managed-by"] != p.name {
			return
		}
		if request.GetDeletionTimestamp() != nil {
			name += "*"
		}
		left = append(left, name)
	}
	access, clusters := &clustersv1alpha1.AccessRequestList{}, &clustersv1alpha1.ClusterRequestList{}
	g := NewWithT(t)
	g.Expect(platform.List(t.Context(), access, client.InNamespace(tenantNamespace(object)))).To(Succeed())
	g.Expect(platform.List(t.Context(), clusters, client.InNamespace(tenantNamespace(object)))).To(Succeed())
	for i := range access.Items {
		add("access", &access.Items[i])
	}
	for i := range clusters.Items {
		add("cluster", &clusters.Items[i])
	}
	return left
}

// The service goes first, then the access, then the cluster, then the object. Each waits for the
// end of the one before, and others' finalizers are respected.
func TestDeletionOrder(t *testing.T) {
	g := NewWithT(t)
	stages := &gate{}
	s := heldService(t, stages)
	p := start(t, s, withWorkload)
	holdDeletion(t, p.name, stages)
	m := order(t, "deletion")
	isReady(t, m)
	edit(t, platform, p.accessRequest(t, m, "mcp"), func(r *clustersv1alpha1.AccessRequest) {
		r.Finalizers = append(r.Finalizers, "example.com/foreign")
	})
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, status(m)).Should(Equal("Terminating Terminating: the service is being removed"))
	eventually(t, func() int { return s.count("delete", m) }).Should(BeNumerically(">", 2))
	g.Expect(requestsLeft(t, p, m)).To(ConsistOf("access", "access", "cluster"))
	g.Expect(domain(t, m)()).To(Equal("example.com"))

	stages.set(stageDomain, true)
	eventually(t, status(m)).
		Should(And(HavePrefix("Terminating AccessDeleting"), ContainSubstring(platformactor.Finalizer),
			ContainSubstring("example.com/foreign")))
	g.Expect(domain(t, m)()).To(Equal("NotFound"))
	eventually(t, func() []string { return requestsLeft(t, p, m) }).Should(ConsistOf("access*", "access*", "cluster"))

	stages.set(stageAccess, true)
	eventually(t, func() []string { return requestsLeft(t, p, m) }).Should(ConsistOf("access*", "cluster"),
		"the other waits for the foreign finalizer")
	barrier(t, "deletion-2")
	g.Expect(requestsLeft(t, p, m)).To(ConsistOf("access*", "cluster"), "and the ClusterRequest for both")
	held := p.accessRequest(t, m, "mcp")
	g.Expect(held.Finalizers).To(ConsistOf("example.com/foreign"))
	edit(t, platform, held, func(r *clustersv1alpha1.AccessRequest) { r.Finalizers = nil })

	eventually(t, func() []string { return requestsLeft(t, p, m) }).Should(ConsistOf("cluster*"))
	eventually(t, status(m)).Should(And(HavePrefix("Terminating AccessDeleting: ClusterRequest"),
		ContainSubstring(platformactor.Finalizer)))
	barrier(t, "deletion-3")
	g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	g.Expect(m.Finalizers).To(ConsistOf(m.Finalizer()))

	stages.set(stageCluster, true)
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(requestsLeft(t, p, m)).To(BeEmpty())
	g.Expect(platform.Get(t.Context(), client.ObjectKey{Namespace: tenantNamespace(m), Name: m.Name},
		&clustersv1alpha1.ClusterRequest{})).To(Succeed(), "the tenant's own request stays")
}

// The process is replaced at each stage of a deletion. Nothing is created again, Delete is not
// called again after it ended, and the deletion ends.
func TestProcessReplacedWhileDeleting(t *testing.T) {
	g := NewWithT(t)
	name := newName(t)
	stages := &gate{}
	holdDeletion(t, name, stages)
	s := heldService(t, stages)
	p := startAs(t, name, s, withWorkload)
	m := order(t, "replaced")
	isReady(t, m)
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, func() int { return s.count("delete", m) }).Should(BeNumerically(">", 0))
	created := func() int {
		return len(sent(t, platform, name, "create", "accessrequests", "")) +
			len(sent(t, platform, name, "create", "clusterrequests", "")) +
			len(sent(t, platform, name, "create", "namespaces", ""))
	}
	before := created()
	g.Expect(before).To(BeNumerically(">=", 3))
	replace := func() {
		p.stop()
		s = heldService(t, stages)
		p = startAs(t, name, s, withWorkload)
	}

	replace()
	eventually(t, func() int { return s.count("delete", m) }).Should(BeNumerically(">", 0))
	g.Expect(requestsLeft(t, p, m)).To(ConsistOf("access", "access", "cluster"))

	stages.set(stageDomain, true)
	eventually(t, func() []string { return requestsLeft(t, p, m) }).Should(ConsistOf("access*", "access*", "cluster"))
	g.Expect(s.count("delete", m)).To(BeNumerically(">", 0))
	replace()
	stages.set(stageAccess, true)
	eventually(t, func() []string { return requestsLeft(t, p, m) }).Should(ConsistOf("cluster*"))
	replace()
	eventually(t, status(m)).Should(HavePrefix("Terminating AccessDeleting: ClusterRequest"))
	g.Expect(s.count("delete", m)).To(BeZero(), "Delete has ended")
	stages.set(stageCluster, true)
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(created()).To(Equal(before), "nothing is created again")
	g.Expect(s.count("delete", m) + s.count("createOrUpdate", m)).To(BeZero())
}

// A process that stopped between two steps left the traces of the first. Another process goes on
// from there.
func TestDeletionGoesOnFromItsTraces(t *testing.T) {
	for _, stage := range []string{"recorded", "access gone", "all gone"} {
		t.Run(stage, func(t *testing.T) {
			g := NewWithT(t)
			s := &service[*v1alpha1.Mailbox]{}
			p := start(t, s, withWorkload)
			m := order(t, "traces")
			isReady(t, m)
			p.stop()
			g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
			g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
			annotate(t, m, "serviceprovider.latchkey.dev/removed", string(m.UID))
			requests := []client.Object{}
			if stage != "recorded" {
				requests = append(requests, p.accessRequest(t, m, "mcp"), p.accessRequest(t, m, "wl"))
			}
			if stage == "all gone" {
				workload := &clustersv1alpha1.ClusterRequest{}
				workload.Namespace, workload.Name = tenantNamespace(m), requests[1].GetName()
				requests = append(requests, workload)
			}
			for _, request := range requests {
				edit(t, platform, request, func(r client.Object) { r.SetFinalizers([]string{platformactor.Finalizer}) })
				g.Expect(platform.Delete(t.Context(), request)).To(Succeed())
				eventually(t, func() error {
					return platform.Get(t.Context(), client.ObjectKeyFromObject(request), request)
				}).Should(MatchError(apierrors.IsNotFound, "gone"))
			}
			s = &service[*v1alpha1.Mailbox]{}
			startAs(t, p.name, s, withWorkload)
			eventually(t, status(m)).Should(Equal("NotFound"))
			g.Expect(requestsLeft(t, p, m)).To(BeEmpty())
			g.Expect(s.count("delete", m)).To(BeZero())
		})
	}
}

// Access that is gone before Delete ended blocks the deletion, until a person gives up what is
// left.
func TestAccessLost(t *testing.T) {
	g := NewWithT(t)
	stages := &gate{}
	s := heldService(t, stages)
	p := start(t, s)
	m := order(t, "lost")
	isReady(t, m)
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, func() int { return s.count("delete", m) }).Should(BeNumerically(">", 0))

	annotate(t, m, sp.OrphanAnnotation, "true")
	before := s.count("delete", m)
	eventually(t, func() int { return s.count("delete", m) }).Should(BeNumerically(">", before+2),
		"with access, the annotation does not count")
	annotate(t, m, sp.OrphanAnnotation, "")

	// Another process starts while the annotation is there. Not to be connected yet is no reason.
	annotate(t, m, sp.OrphanAnnotation, "true")
	p.stop()
	s = heldService(t, stages)
	p = startAs(t, p.name, s)
	eventually(t, func() int { return s.count("delete", m) }).Should(BeNumerically(">", 2))
	g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	g.Expect(m.Annotations).NotTo(HaveKey("serviceprovider.latchkey.dev/removed"))
	annotate(t, m, sp.OrphanAnnotation, "")

	// Somebody deletes the AccessRequest. The platform revokes the access; the request waits for us.
	request := p.accessRequest(t, m, "mcp")
	g.Expect(platform.Delete(t.Context(), request)).To(Succeed())
	eventually(t, status(m)).Should(And(HavePrefix("Terminating AccessLost: AccessRequest"),
		ContainSubstring("is being deleted, and held by "+ourFinalizer), ContainSubstring(sp.OrphanAnnotation)))
	g.Expect(requestsLeft(t, p, m)).To(ConsistOf("access*"))
	// Somebody removes our finalizer, too.
	edit(t, platform, request, func(r *clustersv1alpha1.AccessRequest) { r.Finalizers = nil })
	eventually(t, status(m)).
		Should(And(HavePrefix("Terminating AccessLost: the AccessRequest for the cluster mcp is gone"),
			ContainSubstring(sp.OrphanAnnotation)))
	stages.set(stageDomain, true)
	annotate(t, m, sp.OperationAnnotation, sp.OperationReconcile)
	barrier(t, "lost")
	g.Expect(domain(t, m)()).To(Equal("example.com"), "not removed")
	g.Expect(requestsLeft(t, p, m)).To(BeEmpty(), "and not requested again")
	g.Expect(status(m)()).To(HavePrefix("Terminating AccessLost"))

	annotate(t, m, sp.OrphanAnnotation, "true")
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(domain(t, m)()).To(Equal("example.com"), "a person gave it up")
	g.Expect(remote.Delete(t.Context(), content(m.Name))).To(Succeed())
}

// An order whose tenant does not answer any more can be given up.
func TestOrphanUnreachable(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	m := order(t, "unreachable")
	isReady(t, m)
	account := platformactor.ServiceAccountOf(p.accessRequest(t, m, "mcp"))
	g.Expect(remote.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: account.Namespace,
		Name:      account.Name,
	}})).To(Succeed())
	eventually(t, func() error {
		_, err := p.access.MCPCluster(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		return err
	}).Should(MatchError(clustercache.ErrNotConnected))
	eventually(t, status(m)).Should(HavePrefix("Progressing Unauthorized"))
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, status(m)).Should(HavePrefix("Terminating Unauthorized"))
	g.Expect(s.count("delete", m)).To(BeZero())
	annotate(t, m, sp.OrphanAnnotation, "true")
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(requestsLeft(t, p, m)).To(BeEmpty())
	g.Expect(domain(t, m)()).To(Equal("example.com"))
	g.Expect(remote.Delete(t.Context(), content(m.Name))).To(Succeed())
}

// An annotation that was there before access was lost ends nothing until the status has said what
// is given up.
func TestOrphanOnlyAfterTheStatusSaysWhy(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	m := order(t, "hasty")
	isReady(t, m)
	request := p.accessRequest(t, m, "mcp")
	p.stop()
	annotate(t, m, sp.OrphanAnnotation, "true")
	g.Expect(platform.Delete(t.Context(), request)).To(Succeed())
	edit(t, platform, request, func(r *clustersv1alpha1.AccessRequest) { r.Finalizers = nil })
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())

	httpClient, err := rest.HTTPClientFor(onboarding.cp.Config())
	g.Expect(err).NotTo(HaveOccurred())
	watching, err := client.NewWithWatch(onboarding.cp.Config(),
		client.Options{Scheme: onboarding.Scheme(), HTTPClient: httpClient})
	g.Expect(err).NotTo(HaveOccurred())
	events, err := watching.Watch(t.Context(), &v1alpha1.MailboxList{}, client.InNamespace(m.Namespace),
		client.MatchingFields{"metadata.name": m.Name})
	g.Expect(err).NotTo(HaveOccurred())
	startAs(t, p.name, &service[*v1alpha1.Mailbox]{})
	said := false
	for event := range events.ResultChan() {
		if event.Type == watch.Deleted {
			break
		}
		for _, condition := range event.Object.(*v1alpha1.Mailbox).Status.Conditions {
			said = said || condition.Reason == sp.ReasonAccessLost
		}
	}
	events.Stop()
	utilnet.CloseIdleConnectionsFor(httpClient.Transport)
	g.Expect(said).To(BeTrue(), "the status says what is given up before it is")
	g.Expect(remote.Delete(t.Context(), content(m.Name))).To(Succeed())
}

// A workload cluster that was never used is not missed.
func TestWorkloadNeverUsed(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	m := order(t, "never-used")
	isReady(t, m)
	p.stop()
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	s = &service[*v1alpha1.Mailbox]{}
	startAs(t, p.name, s, withWorkload) // a newer version
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(s.count("delete", m)).To(Equal(1))
	g.Expect(domain(t, m)()).To(Equal("NotFound"))
}

// An order that lost its finalizer has still used its clusters.
func TestFinalizerLost(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	start(t, s)
	m := order(t, "finalizer-lost")
	isReady(t, m)
	edit(t, onboarding, m, func(m *v1alpha1.Mailbox) { m.Finalizers, m.Annotations = nil, nil }) // kubectl replace
	eventually(t, func() []string {
		g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		return m.Finalizers
	}).Should(ConsistOf(m.Finalizer()))
	g.Expect(m.Annotations).NotTo(HaveKey("serviceprovider.latchkey.dev/used"))
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(s.count("delete", m)).To(Equal(1))
}
