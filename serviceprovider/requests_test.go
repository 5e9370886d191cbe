package serviceprovider

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

var (
	created = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	deleted = metav1.NewTime(created.Add(time.Hour))
)

// pendingRequest returns an AccessRequest that the platform has not answered.
func pendingRequest() *clustersv1alpha1.AccessRequest {
	return &clustersv1alpha1.AccessRequest{ObjectMeta: metav1.ObjectMeta{
		Namespace:         "ns",
		Name:              "it",
		Generation:        2,
		CreationTimestamp: created,
	}}
}

// answered returns an AccessRequest with that answer.
func answered(phase clustersv1alpha1.RequestPhase, observed int64, secret string) *clustersv1alpha1.AccessRequest {
	r := pendingRequest()
	r.Status.Phase, r.Status.ObservedGeneration = phase, observed
	if secret != "" {
		r.Status.SecretRef = &clustersv1alpha1.LocalObjectReference{Name: secret}
	}
	return r
}

func TestDescribeProgress(t *testing.T) {
	g := NewWithT(t)
	deleting := answered("Granted", 2, "secret")
	deleting.DeletionTimestamp, deleting.Finalizers = &deleted, []string{"a", "b"}
	explained := answered("Denied", 2, "")
	explained.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Message: "no quota"},
		{Type: "Fine", Status: "True", Message: "not of interest"}}
	cluster := func(phase clustersv1alpha1.RequestPhase) client.Object {
		r := &clustersv1alpha1.ClusterRequest{ObjectMeta: pendingRequest().ObjectMeta}
		r.Status.Phase = phase
		return r
	}
	for want, request := range map[string]client.Object{
		"AccessRequest ns/it is pending, since 2026-01-02T03:04:05Z":                         pendingRequest(),
		"AccessRequest ns/it is granted in an earlier form only, since 2026-01-02T03:04:05Z": answered("Granted", 1, "s"),
		"AccessRequest ns/it has no Secret yet, since 2026-01-02T03:04:05Z":                  answered("Granted", 2, ""),
		"AccessRequest ns/it is denied, since 2026-01-02T03:04:05Z":                          answered("Denied", 2, ""),
		`AccessRequest ns/it is denied, since 2026-01-02T03:04:05Z; "Ready": no quota`:       explained,
		"AccessRequest ns/it is being deleted, and held by a, b, since 2026-01-02T04:04:05Z": deleting,
		"ClusterRequest ns/it is pending, since 2026-01-02T03:04:05Z":                        cluster("Pending"),
		"ClusterRequest ns/it is denied, since 2026-01-02T03:04:05Z":                         cluster("Denied"),
	} {
		g.Expect(describeProgress(request)).To(Equal(want))
	}
	g.Expect(describeProgress(answered("Granted", 2, "s"))).To(BeEmpty())
	g.Expect(describeProgress(cluster("Granted"))).To(BeEmpty(), "the spec of a ClusterRequest never changes")
}

// Only the absence of the Secret's name ends or prevents a connection.
func TestSecretReference(t *testing.T) {
	g := NewWithT(t)
	for _, request := range []*clustersv1alpha1.AccessRequest{answered("Granted", 2, "s"), answered("Granted", 1, "s"),
		answered("Denied", 2, "s"), answered("", 0, "s")} {
		g.Expect(secretReference(request)).To(Equal(credential.SecretReference{
			Namespace: "ns",
			Name:      "s",
			Key:       "kubeconfig",
		}))
	}
	_, err := secretReference(answered("Denied", 2, ""))
	g.Expect(err).To(MatchError(credential.ErrNotAllowed))
	for _, request := range []*clustersv1alpha1.AccessRequest{pendingRequest(), answered("Granted", 2, "")} {
		_, err := secretReference(request)
		g.Expect(err).To(MatchError(credential.ErrPending))
	}
}

func TestIsCurrent(t *testing.T) {
	g := NewWithT(t)
	id := identify("mailbox", client.ObjectKey{Namespace: "team", Name: "hello"}, mcpCluster)
	token := &clustersv1alpha1.TokenConfig{RoleRefs: []clustersv1alpha1.RoleRef{{Kind: "ClusterRole", Name: "view"}}}
	current := func() *clustersv1alpha1.AccessRequest {
		r := pendingRequest()
		id.mark(r)
		r.Spec.Token = token.DeepCopy()
		r.Labels["of-the-platform"], r.Annotations["of-the-platform"] = "x", "x"
		r.Spec.ClusterRef = &clustersv1alpha1.ObjectReference{Namespace: "clusters", Name: "c"}
		r.Finalizers = append(r.Finalizers, "of-the-platform")
		r.Spec.Token.Permissions = []clustersv1alpha1.PermissionsRequest{} // as good as none
		return r
	}
	g.Expect(id.isCurrent(current(), token)).To(BeTrue())
	for name, change := range map[string]func(*clustersv1alpha1.AccessRequest){
		"label":      func(r *clustersv1alpha1.AccessRequest) { delete(r.Labels, labelOnboardingName) },
		"annotation": func(r *clustersv1alpha1.AccessRequest) { r.Annotations[labelOnboardingName] = "other" },
		"finalizer":  func(r *clustersv1alpha1.AccessRequest) { r.Finalizers = r.Finalizers[1:] },
		"token":      func(r *clustersv1alpha1.AccessRequest) { r.Spec.Token.RoleRefs[0].Name = "admin" },
		"no token":   func(r *clustersv1alpha1.AccessRequest) { r.Spec.Token = nil },
		"oidc":       func(r *clustersv1alpha1.AccessRequest) { r.Spec.OIDC = &clustersv1alpha1.OIDCConfig{} },
	} {
		r := current()
		change(r)
		g.Expect(id.isCurrent(r, token)).To(BeFalse(), name)
	}
	other := current()
	other.Labels[labelManagedBy] = "another-tool"
	g.Expect(id.owns(other)).To(MatchError(And(ContainSubstring("another-tool"), ContainSubstring("mailbox"))))
	g.Expect(id.owns(other)).To(MatchError(ErrAccessConflict))
	r := current()
	r.Spec.RequestRef = &clustersv1alpha1.ObjectReference{Namespace: "ns", Name: "red"}
	g.Expect(leadsTo(r, *r.Spec.RequestRef)).To(Succeed())
	g.Expect(leadsTo(r, clustersv1alpha1.ObjectReference{Namespace: "ns", Name: "blue"})).
		To(MatchError(ErrAccessConflict))
	g.Expect(leadsTo(current(), *r.Spec.RequestRef)).To(MatchError(ErrAccessConflict), "it may lead anywhere")
	other = current()
	other.Labels[labelManagedPurpose] = "team.other.mcp"
	g.Expect(id.owns(other)).To(MatchError(ErrAccessConflict))
}

func TestTimestamp(t *testing.T) {
	g := NewWithT(t)
	secret := &corev1.Secret{Data: map[string][]byte{"a": []byte("1767323045"), "b": []byte("2026-01-02T03:04:05Z"),
		"c": []byte("hunter2")}}
	for _, key := range []string{"a", "b"} {
		g.Expect(clustersv1alpha1.Timestamp(secret, key)).To(BeTemporally("==", created.Time), key)
	}
	g.Expect(clustersv1alpha1.Timestamp(secret, "none")).To(BeZero())
	_, err := clustersv1alpha1.Timestamp(secret, "c")
	g.Expect(err).To(MatchError(Not(ContainSubstring("hunter2"))))
}

func TestUsed(t *testing.T) {
	g := NewWithT(t)
	a := &testAPI{ObjectMeta: metav1.ObjectMeta{UID: "1"}}
	_, known := usedClusters(a)
	g.Expect(known).To(BeFalse())
	for _, used := range [][]string{nil, {"mcp"}, {"mcp", "workload"}} {
		setUsed(a, used)
		got, known := usedClusters(a)
		g.Expect(known).To(BeTrue())
		g.Expect(got).To(Equal(used))
	}
	setAnnotation(a, removedAnnotation, "1")
	g.Expect(isRemoved(a)).To(BeTrue())
	a.UID = "restored from a backup"
	_, known = usedClusters(a)
	g.Expect(known).To(BeFalse())
	g.Expect(isRemoved(a)).To(BeFalse())
}

// Tenants see the answer of the platform cluster, and not where it is and who asked.
func TestPlatformProblem(t *testing.T) {
	g := NewWithT(t)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "accessrequests"}, "it",
		errors.New("user provider"))
	g.Expect(platformProblem(errors.Wrap(forbidden, "reading"))).To(HavePrefix("the platform cluster answers Forbidden;"))
	g.Expect(platformProblem(errors.New("dial tcp 10.0.0.1:6443"))).
		To(HavePrefix("the platform cluster cannot be asked;"))
}
