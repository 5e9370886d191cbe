package replicas

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/ownership/controllersharding"
)

// stateLabel is the label that the sharder sets on the Leases of shards.
const stateLabel = "alpha.sharding.timebertt.dev/state"

// ringMember is the label of the ConfigMaps that a test's ring has.
const ringMember = "test.latchkey.dev/ring"

// sharder does what kubernetes-controller-sharding does for one ring of ConfigMaps, as its
// documentation and its behavior say: a webhook that labels objects, a controller of Leases, and
// one that moves objects.
type sharder struct {
	client client.Client
	ring   string
	begun  time.Time

	mu        sync.Mutex
	available []string                // guarded by mu
	assigned  map[string][]assignment // guarded by mu; by object, what the webhook has decided
	taken     map[string]int          // guarded by mu; how often the sharder has taken a shard's Lease
}

// assignment is what the webhook decided for an object.
type assignment struct {
	shard string
	at    time.Time
}

func startSharder(t *testing.T, ring string) *sharder {
	t.Helper()
	g := NewWithT(t)
	s := &sharder{
		client:   admin(t),
		ring:     ring,
		begun:    time.Now(),
		assigned: map[string][]assignment{},
		taken:    map[string]int{},
	}
	server := httptest.NewTLSServer(http.HandlerFunc(s.admit))
	t.Cleanup(server.Close)
	hook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "ring-" + ring},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:                    "sharder.test.latchkey.dev",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           new(admissionregistrationv1.Ignore),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			ObjectSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{ringMember: ring},
				MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: s.shardLabel(), Operator: metav1.LabelSelectorOpDoesNotExist}},
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE"},
				Rule: admissionregistrationv1.Rule{
					APIGroups:   []string{""},
					APIVersions: []string{"*"},
					Resources:   []string{"configmaps"},
				}}},
		}},
	}
	g.Expect(s.client.Create(t.Context(), hook)).To(Succeed())
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		_ = s.client.Delete(context.Background(), hook)
		_ = s.client.DeleteAllOf(context.Background(), &coordinationv1.Lease{}, client.InNamespace("default"),
			client.MatchingLabels{controllersharding.RingLabel: ring})
	})
	return s
}

func (s *sharder) shardLabel() string { return controllersharding.ShardLabelPrefix + s.ring }
func (s *sharder) drainLabel() string { return controllersharding.DrainLabelPrefix + s.ring }

// desired returns the shard that is to have an object, "" if no shard is available.
func (s *sharder) desired(object string) (shard string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return desired(s.available, object)
}

func desired(available []string, object string) (shard string) {
	best := uint64(0)
	for _, candidate := range available {
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(object + candidate))
		if score := hash.Sum64() * 0x9e3779b97f4a7c15; shard == "" || score > best {
			shard, best = candidate, score
		}
	}
	return shard
}

// admit is the webhook.
func (s *sharder) admit(w http.ResponseWriter, req *http.Request) {
	var review admissionv1.AdmissionReview
	var object metav1.PartialObjectMetadata
	if json.NewDecoder(req.Body).Decode(&review) != nil || json.Unmarshal(review.Request.Object.Raw, &object) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	name := review.Request.Namespace + "/" + review.Request.Name
	if shard := s.desired(name); shard != "" && object.Labels[s.shardLabel()] == "" {
		labels := map[string]string{s.shardLabel(): shard}
		for key, value := range object.Labels {
			labels[key] = value
		}
		response.Patch, _ = json.Marshal([]map[string]any{{"op": "add", "path": "/metadata/labels", "value": labels}})
		response.PatchType = new(admissionv1.PatchTypeJSONPatch)
		s.mu.Lock()
		s.assigned[name] = append(s.assigned[name], assignment{shard, time.Now()})
		s.mu.Unlock()
	}
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}

// resyncPeriod is how often the sharder looks at all objects.
const resyncPeriod = 2 * time.Second

// run is the controllers of Leases and of objects.
func (s *sharder) run(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var synced time.Time
	for ctx.Err() == nil {
		resync := s.checkLeases(ctx) || time.Since(synced) >= resyncPeriod
		if resync {
			synced = time.Now()
		}
		s.move(ctx, resync)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// state returns the state of a shard's Lease.
func state(lease *coordinationv1.Lease, now time.Time) string {
	spec := lease.Spec
	holds := spec.HolderIdentity != nil && *spec.HolderIdentity == lease.Name
	expires, duration := now, 15*time.Second
	if spec.AcquireTime != nil && spec.RenewTime != nil && spec.LeaseDurationSeconds != nil {
		duration = time.Duration(*spec.LeaseDurationSeconds) * time.Second
		expires = spec.RenewTime.Add(duration)
	}
	switch {
	case !holds && !now.Before(expires.Add(time.Minute)):
		return "orphaned"
	case !holds:
		return "dead"
	case !now.Before(expires.Add(duration)):
		return "uncertain"
	case !now.Before(expires):
		return "expired"
	}
	return "ready"
}

// checkLeases labels the Leases with their states, takes those that are uncertain, and reports
// whether other shards are available.
func (s *sharder) checkLeases(ctx context.Context) (changed bool) {
	var leases coordinationv1.LeaseList
	if s.client.List(ctx, &leases, client.InNamespace("default"),
		client.MatchingLabels{controllersharding.RingLabel: s.ring}) != nil {
		return false
	}
	var available []string
	for i := range leases.Items {
		lease := &leases.Items[i]
		now := time.Now()
		is := state(lease, now)
		if lease.Labels[stateLabel] != is {
			before := lease.DeepCopy()
			lease.Labels[stateLabel] = is
			_ = s.client.Patch(ctx, lease, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		}
		switch is {
		case "orphaned":
			_ = s.client.Delete(ctx, lease)
		case "uncertain":
			taken := metav1.NewMicroTime(now)
			lease.Spec.HolderIdentity = new("shardlease-controller")
			lease.Spec.AcquireTime, lease.Spec.RenewTime = &taken, &taken
			lease.Spec.LeaseDurationSeconds = new(2 * *lease.Spec.LeaseDurationSeconds)
			if s.client.Update(ctx, lease) == nil {
				s.mu.Lock()
				s.taken[lease.Name]++
				s.mu.Unlock()
				continue
			}
			available = append(available, lease.Name)
		case "ready", "expired":
			available = append(available, lease.Name)
		}
	}
	slices.Sort(available)
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = !slices.Equal(s.available, available)
	s.available = available
	return changed
}

// move drains the objects of shards that are available, and moves those of others, if another shard
// is to have them.
func (s *sharder) move(ctx context.Context, drains bool) {
	s.mu.Lock()
	available := slices.Clone(s.available)
	s.mu.Unlock()
	var objects metav1.PartialObjectMetadataList
	objects.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	if len(available) == 0 || s.client.List(ctx, &objects, client.InNamespace("default"),
		client.MatchingLabels{ringMember: s.ring}) != nil {
		return
	}
	for i := range objects.Items {
		object := &objects.Items[i]
		current, desired := object.Labels[s.shardLabel()], s.desired(object.Namespace+"/"+object.Name)
		labels := map[string]any{s.shardLabel(): nil, s.drainLabel(): nil}
		switch {
		case current == desired:
			continue
		case slices.Contains(available, current) && !drains:
			continue // not a resync
		case slices.Contains(available, current):
			labels = map[string]any{s.drainLabel(): "true"}
		}
		patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": object.ResourceVersion, "labels": labels}})
		_ = s.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
	}
}

// wasTaken reports whether the sharder has taken the Lease of a shard.
func (s *sharder) wasTaken(shard string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken[shard] > 0
}

// assignedTo returns what the webhook decided for an object last.
func (s *sharder) assignedTo(object string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := s.assigned[object]; len(all) > 0 {
		return all[len(all)-1].shard
	}
	return ""
}

// extensionSuffix is at the end of the names of ConfigMaps that are extensions.
const extensionSuffix = "-x"

// ringExtensions creates ConfigMaps that are extensions of a ring.
func ringExtensions(t *testing.T, ring string, n int) (names []string) {
	t.Helper()
	g := NewWithT(t)
	c := admin(t)
	accounts := manyExtensions(t, ring, n) // their ServiceAccounts, which may write ConfigMaps
	for _, account := range accounts {
		name := account + extensionSuffix
		g.Expect(c.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default",
				Name:      name,
				Labels:    map[string]string{ringMember: ring},
			},
			Data: map[string]string{"serviceAccount": account},
		})).To(Succeed())
		names = append(names, "default/"+name)
	}
	t.Cleanup(func() {
		_ = c.DeleteAllOf(context.Background(), &corev1.ConfigMap{}, client.InNamespace("default"),
			client.MatchingLabels{ringMember: ring})
	})
	return names
}

// ringFleet is replicas that are shards of a ring.
type ringFleet struct {
	*fleet
	sharder *sharder
	tenants []string
}

// settles waits until each extension is served by the replica that its label names, and that is one
// of those.
func (f *ringFleet) settles(replicas ...*replica) {
	f.t.Helper()
	NewWithT(f.t).Eventually(func(g Gomega) {
		owners := f.owners()
		shares := map[string]int{}
		for _, tenant := range f.tenants {
			name := keyOf(tenant).Name
			owner := owners[name]
			g.Expect(owner).NotTo(BeNil(), "%s has no replica", tenant)
			g.Expect(f.sharder.assignedTo(tenant)).To(Equal(owner.name), "replica of %s", tenant)
			shares[owner.name]++
		}
		for _, r := range replicas {
			g.Expect(shares).To(HaveKey(r.name))
		}
		g.Expect(len(shares)).To(Equal(len(replicas)))
	}).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(Succeed())
}

// expectAssigned checks that each request for an extension is of the replica to which the webhook
// had assigned it at that time.
func (f *ringFleet) expectAssigned() {
	f.t.Helper()
	sent := map[string][]tenantRequest{} // before what was assigned: extensions may still move
	for _, tenant := range f.tenants {
		sent[tenant] = tenantRequests(prefixOf(tenant))
	}
	byName := map[string][]assignment{}
	f.sharder.mu.Lock()
	for object, all := range f.sharder.assigned {
		byName[object] = slices.Clone(all)
	}
	f.sharder.mu.Unlock()
	requests := 0
	for _, tenant := range f.tenants {
		for _, request := range sent[tenant] {
			if request.extension != tenant || request.at.Before(f.sharder.begun) {
				continue
			}
			requests++
			holder := ""
			for _, a := range byName[tenant] {
				if a.at.Before(request.at) {
					holder = a.shard
				}
			}
			if holder != request.replica {
				f.t.Errorf("%s sent %s for %s at %s, when %q had it", request.replica, request.uri, tenant,
					request.at.Format(time.StampMicro), holder)
			}
		}
	}
	f.t.Logf("%d requests", requests)
	NewWithT(f.t).Expect(requests).To(BeNumerically(">", 0))
}

// Replicas are shards of a ring: they serve what the sharder labels with their names, give up what
// it drains, and lose what it takes from them when they are gone.
func TestControllerSharding(t *testing.T) {
	g := NewWithT(t)
	const ring = "sharding"
	f := &ringFleet{
		sharder: startSharder(t, ring),
		fleet: newFleet(t, ring, options{
			Ring:       ring,
			Lease:      3 * time.Second,
			WritePause: 20 * time.Millisecond,
		}),
	}
	f.tenants = ringExtensions(t, ring, 12)
	f.options.Extensions = f.tenants
	a, b := f.start(), f.start()
	f.settles(a, b)

	c := f.start()
	f.settles(a, b, c)
	var lease coordinationv1.Lease
	g.Eventually(func() map[string]string {
		key := client.ObjectKey{Namespace: "default", Name: c.name}
		g.Expect(f.sharder.client.Get(t.Context(), key, &lease)).To(Succeed())
		return lease.Labels
	}).WithTimeout(patience).Should(Equal(map[string]string{controllersharding.RingLabel: ring, stateLabel: "ready"}))
	version := lease.ResourceVersion
	g.Eventually(func() string {
		g.Expect(f.sharder.client.Get(t.Context(), client.ObjectKeyFromObject(&lease), &lease)).To(Succeed())
		return lease.ResourceVersion
	}).WithTimeout(patience).ShouldNot(Equal(version), "a renewal")
	g.Expect(lease.Labels).To(HaveKeyWithValue(stateLabel, "ready"), "the sharder's label stays")

	killed := time.Now()
	f.kill(b)
	f.settles(a, c)
	t.Logf("killed one: all are served again after %s", time.Since(killed))
	g.Expect(f.sharder.wasTaken(b.name)).To(BeTrue())

	ended := time.Now()
	a.signal(syscall.SIGTERM)
	g.Eventually(a.ended).WithTimeout(patience).Should(BeClosed())
	f.settles(c)
	t.Logf("one ended: all are served again after %s", time.Since(ended))
	g.Expect(a.cmd.ProcessState.ExitCode()).To(Equal(0), "it left nothing behind")
	g.Expect(f.sharder.wasTaken(a.name)).To(BeFalse(), "it gave its Lease up")

	paused := f.start()
	f.settles(c, paused)
	paused.signal(syscall.SIGSTOP)
	g.Eventually(func() bool { return f.sharder.wasTaken(paused.name) }).WithTimeout(patience).Should(BeTrue())
	g.Eventually(func() bool {
		return !slices.ContainsFunc(f.tenants, func(tenant string) bool { return f.sharder.assignedTo(tenant) != c.name })
	}).WithTimeout(patience).Should(BeTrue(), "the other shard has all")
	c.writes(t, 200)
	paused.signal(syscall.SIGCONT)
	f.settles(c, paused)
	f.expectAssigned()
}

// A handler that hangs delays the drain of its extension by 5 s, not for ever, and that of no other
// one.
func TestDrainWaitsForHandlers(t *testing.T) {
	g := NewWithT(t)
	const ring = "hanging"
	f := &ringFleet{
		sharder: startSharder(t, ring),
		fleet: newFleet(t, ring, options{
			Ring:       ring,
			Lease:      3 * time.Second,
			WritePause: 20 * time.Millisecond,
		}),
	}
	f.tenants = ringExtensions(t, ring, 8)
	f.options.Extensions = f.tenants
	// Which extension is drained follows from the names of the shards.
	var hangs, other string
	for _, tenant := range f.tenants {
		if desired([]string{ring + "-replica-0", ring + "-replica-1"}, tenant) == ring+"-replica-1" {
			if hangs == "" {
				hangs = tenant // the sharder drains it first
			} else {
				other = tenant
			}
		}
	}
	g.Expect(other).NotTo(BeEmpty(), "two extensions that move")
	f.options.Hang = hangs
	a := f.start()
	f.settles(a)
	g.Eventually(a.log.String).WithTimeout(patience).Should(ContainSubstring("a handler hangs"))
	f.options.Hang = ""
	b := f.start()
	f.settles(a, b)
	f.expectAssigned()
	f.sharder.mu.Lock()
	defer f.sharder.mu.Unlock()
	at := func(tenant string) time.Time { return f.sharder.assigned[tenant][len(f.sharder.assigned[tenant])-1].at }
	delay := at(hangs).Sub(at(other))
	t.Logf("the drain of the extension whose handler hangs took %s longer", delay)
	g.Expect(delay).To(And(BeNumerically(">", 3*time.Second), BeNumerically("<", patience)))
}

// A cluster-scoped kind is refused.
func TestClusterScopedKindIsRefused(t *testing.T) {
	g := NewWithT(t)
	r := startReplica(t, options{Name: "cluster-scoped", Ring: "any", ClusterScoped: true})
	g.Eventually(r.ended).WithTimeout(patience).Should(BeClosed())
	g.Expect(r.cmd.ProcessState.ExitCode()).To(Equal(1))
	g.Expect(r.log.String()).To(ContainSubstring("Options.Ownership: ClusterExtension.latchkey.dev is cluster-scoped"))
	g.Expect(fmt.Sprint(r.log)).To(ContainSubstring("buckets"))
}
