package serviceprovider

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/platformactor"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	sp "github.com/latchkey-dev/latchkey/serviceprovider"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

const ourFinalizer = "clusters.openmcp.cloud/clusteraccess"

func withWorkload(o *options) {
	o.access.Workload = everything()
	o.access.Workload.Permissions[0].Namespace = workloadNamespace
}

// workloadNamespace is where the provider may do everything on the workload cluster.
const workloadNamespace = "workloads"

// The requests have the documented names, labels and finalizers, and their specs cannot be changed
// into something else.
func TestRequests(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s, withWorkload)
	m := order(t, "requests")
	isReady(t, m)
	labels := func(purpose string) map[string]string {
		return map[string]string{
			"openmcp.cloud/managed-by": p.name, "openmcp.cloud/managed-purpose": "default.requests." + purpose,
			"openmcp.cloud/onboarding-name": "requests", "openmcp.cloud/onboarding-namespace": "default",
			"clusters.openmcp.cloud/provider": "platformactor", // completed by the platform
		}
	}
	mcp, workload := p.accessRequest(t, m, "mcp"), p.accessRequest(t, m, "wl")
	g.Expect(mcp.Labels).To(Equal(labels("mcp")))
	g.Expect(workload.Labels).To(Equal(labels("workload")))
	g.Expect(mcp.Spec.RequestRef).To(Equal(&clustersv1alpha1.ObjectReference{Namespace: mcp.Namespace, Name: "requests"}))
	g.Expect(workload.Spec.RequestRef).To(Equal(&clustersv1alpha1.ObjectReference{
		Namespace: workload.Namespace,
		Name:      workload.Name,
	}))
	clusterRequest := &clustersv1alpha1.ClusterRequest{}
	g.Expect(platform.Get(t.Context(), client.ObjectKeyFromObject(workload), clusterRequest)).To(Succeed())
	g.Expect(clusterRequest.Spec).To(Equal(clustersv1alpha1.ClusterRequestSpec{Purpose: "workload"}))
	for _, request := range []client.Object{mcp, workload, clusterRequest} {
		g.Expect(request.GetFinalizers()).To(ContainElement(ourFinalizer))
		g.Expect(request.GetAnnotations()).To(HaveKeyWithValue("openmcp.cloud/onboarding-name", "requests"))
		g.Expect(request.GetNamespace()).To(Equal(tenantNamespace(m)))
	}
	own := &clustersv1alpha1.ClusterRequest{}
	g.Expect(platform.Get(t.Context(), client.ObjectKey{Namespace: mcp.Namespace, Name: "requests"}, own)).To(Succeed())
	g.Expect(own.Finalizers).NotTo(ContainElement(ourFinalizer), "the tenant's own request stays as it is")
	g.Expect(own.Labels).To(BeEmpty())

	for name, change := range map[string]func(*clustersv1alpha1.AccessRequestSpec){
		"requestRef is immutable":       func(s *clustersv1alpha1.AccessRequestSpec) { s.RequestRef.Name = "other" },
		"clusterRef is immutable":       func(s *clustersv1alpha1.AccessRequestSpec) { s.ClusterRef.Name = "other" },
		"requestRef may not be removed": func(s *clustersv1alpha1.AccessRequestSpec) { s.RequestRef = nil },
		"spec.clusterRef or spec.requestRef must be set": func(s *clustersv1alpha1.AccessRequestSpec) {
			s.ClusterRef, s.RequestRef = nil, nil
		},
		"clusterRef may not be removed": func(s *clustersv1alpha1.AccessRequestSpec) { s.ClusterRef = nil },
		"exactly one of": func(s *clustersv1alpha1.AccessRequestSpec) {
			s.OIDC = &clustersv1alpha1.OIDCConfig{Name: "a", Issuer: "https://b", ClientID: "c"}
		},
	} {
		changed := mcp.DeepCopy()
		change(&changed.Spec)
		g.Expect(platform.Update(t.Context(), changed)).To(MatchError(ContainSubstring(name)))
	}
	clusterRequest.Spec.Purpose = "mcp"
	g.Expect(platform.Update(t.Context(), clusterRequest)).To(MatchError(ContainSubstring("spec is immutable")))

	// A newer version of the provider requests more. What the platform completed stays.
	p.stop()
	startAs(t, p.name, s, withWorkload, func(o *options) {
		o.access.MCP = everything()
		o.access.MCP.RoleRefs = []clustersv1alpha1.RoleRef{{Kind: "ClusterRole", Name: "view"}}
	})
	eventually(t, func() int { return len(p.accessRequest(t, m, "mcp").Spec.Token.RoleRefs) }).Should(Equal(1))
	eventually(t, func() bool { return p.accessRequest(t, m, "mcp").IsGranted() }).Should(BeTrue())
	changed := p.accessRequest(t, m, "mcp")
	g.Expect(changed.Spec.ClusterRef).To(Equal(mcp.Spec.ClusterRef))
	g.Expect(changed.Labels).To(Equal(mcp.Labels))
	isReady(t, m)
}

func TestLongNames(t *testing.T) {
	g := NewWithT(t)
	p := start(t, &service[*v1alpha1.Mailbox]{}, withWorkload)
	m := order(t, strings.Repeat("long.", 50)+"end")
	g.Expect(m.Name).To(HaveLen(253))
	isReady(t, m)
	requests := &clustersv1alpha1.AccessRequestList{}
	g.Expect(platform.List(t.Context(), requests, client.InNamespace(tenantNamespace(m)))).To(Succeed())
	g.Expect(requests.Items).To(HaveLen(2))
	for _, request := range requests.Items {
		g.Expect(len(request.Name)).To(BeNumerically("<=", 63))
		g.Expect(request.Annotations["openmcp.cloud/onboarding-name"]).To(Equal(m.Name))
	}
	g.Expect(p.mcp(t, m).ID()).To(Equal("mcp"))
}

// While a grant is about an earlier version of the request, CreateOrUpdate waits. The connection
// stays.
func TestStaleGrant(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	m := order(t, "stale")
	isReady(t, m)
	connected := p.mcp(t, m).State(t.Context())
	judge(t, func(object client.Object) platformactor.Verdict { return platformactor.Hold })
	request := p.accessRequest(t, m, "mcp")
	edit(t, platform, request, func(r *clustersv1alpha1.AccessRequest) {
		r.Spec.TTL = &metav1.Duration{Duration: 1 << 50}
	})
	eventually(t, status(m)).Should(And(HavePrefix("Progressing AccessPending"),
		ContainSubstring("is granted in an earlier form only")))
	before := s.count("createOrUpdate", m)
	edit(t, onboarding, m, func(m *v1alpha1.Mailbox) { m.Spec.Address = "new" })
	eventually(t, func() int64 {
		g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		return m.Status.ObservedGeneration
	}).Should(Equal(m.Generation))
	g.Expect(s.count("createOrUpdate", m)).To(Equal(before))
	actor.Judge(nil)
	isReady(t, m)
	state := p.mcp(t, m).State(t.Context())
	g.Expect(state.Epoch).To(Equal(connected.Epoch))
	g.Expect(state.Since).To(Equal(connected.Since))
}

func TestOwnershipConflict(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	m := &v1alpha1.Mailbox{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "conflict"}}
	controlPlane(t, m)
	foreign := &clustersv1alpha1.AccessRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: tenantNamespace(m),
			Name:      p.name + "--conflict--mcp",
			Labels:    map[string]string{"openmcp.cloud/managed-by": "another-tool"},
		},
		Spec: clustersv1alpha1.AccessRequestSpec{
			Token:      &clustersv1alpha1.TokenConfig{},
			RequestRef: &clustersv1alpha1.ObjectReference{Namespace: tenantNamespace(m), Name: "conflict"},
		},
	}
	judge(t, func(client.Object) platformactor.Verdict { return platformactor.Hold })
	g.Expect(platform.Create(t.Context(), foreign)).To(Succeed())
	g.Expect(onboarding.Create(t.Context(), m)).To(Succeed())
	endOf(t).objects = append(endOf(t).objects, m)
	eventually(t, status(m)).Should(And(HavePrefix("Progressing AccessConflict"), ContainSubstring(`"another-tool"`),
		ContainSubstring(`"`+p.name+`"`)))
	found := p.accessRequest(t, m, "mcp")
	g.Expect(found.ResourceVersion).To(Equal(foreign.ResourceVersion), "untouched")
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, status(m)).Should(Equal("NotFound"))
	found = p.accessRequest(t, m, "mcp")
	g.Expect(found.ResourceVersion).To(Equal(foreign.ResourceVersion), "untouched")
	g.Expect(s.count("createOrUpdate", m) + s.count("delete", m)).To(BeZero())
	again := order(t, "conflict")
	eventually(t, status(again)).Should(HavePrefix("Progressing AccessConflict"))
	actor.Judge(nil)
	g.Expect(platform.Delete(t.Context(), foreign)).To(Succeed())
	isReady(t, again)
}

// calendar orders a Calendar of the same tenant.
func calendar(t *testing.T, name string) *Calendar {
	t.Helper()
	c := &Calendar{}
	c.Namespace, c.Name = "default", name
	orderObject(t, c)
	return c
}

// Two providers have requests in the same namespace of the platform. Neither reads the other's
// Secret.
func TestTwoProvidersOnOnePlatform(t *testing.T) {
	g := NewWithT(t)
	mailboxes, calendars := &service[*v1alpha1.Mailbox]{}, &service[*Calendar]{}
	first := start(t, mailboxes)
	second := startOf(t, newName(t), func() *Calendar { return &Calendar{} }, calendars)
	m := order(t, "two")
	c := calendar(t, "two")
	isReady(t, m)
	eventually(t, func() int { return calendars.count("createOrUpdate", c) }).Should(BeNumerically(">", 0))
	for _, p := range []*process{first, second} {
		secrets := sent(t, platform, p.name, "", "secrets", "")
		g.Expect(secrets).NotTo(BeEmpty())
		for _, request := range secrets {
			g.Expect(request.ObjectRef.Namespace).To(Equal(tenantNamespace(m)))
			g.Expect(request.RequestURI).To(ContainSubstring("metadata.name%3Daccess-"+p.name+"--two--mcp"), request.Verb)
		}
		reads := append(sent(t, platform, p.name, "list", "accessrequests", ""),
			sent(t, platform, p.name, "watch", "accessrequests", "")...)
		g.Expect(reads).NotTo(BeEmpty())
		for _, request := range reads {
			g.Expect(request.RequestURI).To(ContainSubstring("labelSelector=openmcp.cloud%2Fmanaged-by%3D" + p.name))
		}
	}
}

// Two providers work side by side in one process.
func TestTwoProvidersInOneProcess(t *testing.T) {
	g := NewWithT(t)
	mailboxes, calendars := &service[*v1alpha1.Mailbox]{}, &service[*Calendar]{}
	name := newName(t)
	p := newProcess(t, name)
	add(t, p, name+"-mail", func() *v1alpha1.Mailbox { return &v1alpha1.Mailbox{} }, mailboxes, func(o *options) {
		o.checkNames = true
	})
	add(t, p, name+"-calendar", func() *Calendar { return &Calendar{} }, calendars, func(o *options) {
		o.config.Domain, o.checkNames = "calendars", true
	})
	p.run(t)
	m := order(t, "both-mail")
	c := calendar(t, "both-calendar")
	isReady(t, m)
	eventually(t, domain(t, c)).Should(Equal("calendars"))
	g.Expect(domain(t, m)()).To(Equal("example.com"))
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(domain(t, c)()).To(Equal("calendars"))
	g.Expect(calendars.count("delete", c)).To(BeZero())
}

func TestWorkloadCluster(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	contexts := make(chan sp.ClusterContext, 100)
	s.createOrUpdate = observe(contexts)
	p := start(t, s)
	m := order(t, "workload-off")
	isReady(t, m)
	clusters := <-contexts
	g.Expect(clusters.WorkloadCluster).To(BeNil())
	g.Expect(clusters.WorkloadAccessSecretKey).To(BeZero())
	g.Expect(clusters.MCPAccessSecretKey).To(Equal(client.ObjectKey{
		Namespace: tenantNamespace(m),
		Name:      fmt.Sprintf("access-%s--workload-off--mcp", p.name),
	}))
	secret := &corev1.Secret{}
	g.Expect(platform.Get(t.Context(), clusters.MCPAccessSecretKey, secret)).To(Succeed())
	g.Expect(clustersv1alpha1.Timestamp(secret, clustersv1alpha1.SecretKeyExpirationTimestamp)).NotTo(BeZero())
	p.stop()

	s = &service[*v1alpha1.Mailbox]{}
	s.createOrUpdate = observe(contexts)
	name := p.name
	judge(t, func(object client.Object) platformactor.Verdict {
		if _, ok := object.(*clustersv1alpha1.ClusterRequest); ok && isFor(object, name) {
			return platformactor.Hold
		}
		return platformactor.Grant
	})
	p = startAs(t, p.name, s, withWorkload)
	eventually(t, status(m)).Should(And(HavePrefix("Progressing AccessPending: ClusterRequest"),
		ContainSubstring("is pending, since")))
	actor.Judge(nil)
	isReady(t, m)
	eventually(t, func() sp.ClusterContext {
		select {
		case clusters = <-contexts:
		default:
		}
		return clusters
	}).Should(HaveField("WorkloadCluster", Not(BeNil())))
	g.Expect(clusters.WorkloadCluster.ID()).To(Equal("workload"))
	for suffix, c := range map[string]*sp.Cluster{"mcp": clusters.MCPCluster, "wl": clusters.WorkloadCluster} {
		account := platformactor.ServiceAccountOf(p.accessRequest(t, m, suffix))
		g.Expect(c.State(t.Context()).Identity.Username).To(
			Equal("system:serviceaccount:" + account.Namespace + ":" + account.Name))
	}
	list := func(c *sp.Cluster, namespace string) error {
		return c.UncachedClient().List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(namespace))
	}
	g.Expect(list(clusters.WorkloadCluster, workloadNamespace)).To(Succeed())
	g.Expect(list(clusters.MCPCluster, domainNamespace)).To(Succeed())
	g.Expect(list(clusters.WorkloadCluster, domainNamespace)).To(MatchError(apierrors.IsForbidden, "forbidden"))
	g.Expect(list(clusters.MCPCluster, workloadNamespace)).To(MatchError(apierrors.IsForbidden, "forbidden"))
	g.Expect(clusters.WorkloadAccessSecretKey.Name).To(HaveSuffix("--wl"))
	p.stop()

	// A version that requests no workload cluster any more cleans up behind the one before.
	s = &service[*v1alpha1.Mailbox]{}
	startAs(t, p.name, s)
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, status(m)).Should(Equal("NotFound"))
	g.Expect(requestsLeft(t, p, m)).To(BeEmpty())
}

// An AccessRequest that others delete is requested again.
func TestAccessIsRenewed(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{createOrUpdate: watchAndKeep}
	p := start(t, s)
	m := order(t, "renewed")
	isReady(t, m)
	request := p.accessRequest(t, m, "mcp")
	g.Expect(platform.Delete(t.Context(), request)).To(Succeed())
	eventually(t, func() bool {
		found := p.accessRequest(t, m, "mcp")
		return found.UID != request.UID && found.IsGranted()
	}).Should(BeTrue())
	isReady(t, m)
	g.Expect(domain(t, m)()).To(Equal("example.com"))
	g.Expect(remote.Delete(t.Context(), content(m.Name))).To(Succeed())
	eventually(t, domain(t, m)).Should(Equal("example.com"), "the new access is watched, too")
}
