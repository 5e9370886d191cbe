package serviceprovider

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// Labels and annotations of requests. The annotations of the same keys have the whole names, where
// the labels are shortened.
const (
	labelManagedBy           = "openmcp.cloud/managed-by"
	labelManagedPurpose      = "openmcp.cloud/managed-purpose"
	labelOnboardingName      = "openmcp.cloud/onboarding-name"
	labelOnboardingNamespace = "openmcp.cloud/onboarding-namespace"
)

// requestFinalizer holds the requests until the service is removed.
const requestFinalizer = "clusters.openmcp.cloud/clusteraccess"

// Errors of the built-in ClusterAccessProvider's Reconcile.
var (
	// ErrAccessDenied: the platform denied a request.
	ErrAccessDenied = errors.New("access denied")
	// ErrAccessConflict: a request of the same name belongs to another controller, or is for
	// another cluster. The runtime does not change that request. MCPCluster, MCPAccessRequest and
	// those for the workload cluster return ErrAccessConflict, too.
	ErrAccessConflict = errors.New("the request belongs to another controller")
)

// clusterKind is one of the clusters that an object has access to.
type clusterKind struct{ id, suffix string }

var (
	mcpCluster      = clusterKind{id: "mcp", suffix: "mcp"}
	workloadCluster = clusterKind{id: "workload", suffix: "wl"}
)

// requestIdentity is what the requests of one object and one kind of cluster have in common.
type requestIdentity struct {
	key                 client.ObjectKey // of both, the ClusterRequest and the AccessRequest
	labels, annotations map[string]string
}

// identify returns the identity of an object's requests.
func identify(controllerName string, object client.ObjectKey, kind clusterKind) requestIdentity {
	purpose := strings.TrimPrefix(object.Namespace+"."+object.Name+"."+kind.id, ".")
	id := requestIdentity{
		key: client.ObjectKey{
			Namespace: tenantNamespace(object),
			Name:      requestName(controllerName, object.Name, kind.suffix),
		},
		labels: map[string]string{
			labelManagedBy:      managedBy(controllerName),
			labelManagedPurpose: shorten(purpose, maxName),
			labelOnboardingName: shorten(object.Name, maxName),
		},
		annotations: map[string]string{labelOnboardingName: object.Name},
	}
	if object.Namespace != "" {
		id.labels[labelOnboardingNamespace] = shorten(object.Namespace, maxName)
		id.annotations[labelOnboardingNamespace] = object.Namespace
	}
	return id
}

// managedBy returns the value of labelManagedBy of a controller's requests.
func managedBy(controllerName string) string { return shorten(controllerName, maxName) }

// objectOf returns the object that a request is about, and false if the request does not say.
func objectOf(request client.Object) (client.ObjectKey, bool) {
	key := client.ObjectKey{
		Namespace: request.GetAnnotations()[labelOnboardingNamespace],
		Name:      request.GetAnnotations()[labelOnboardingName],
	}
	if key.Name == "" { // made by another runtime; a shortened label names no object, which does no harm
		key = client.ObjectKey{
			Namespace: request.GetLabels()[labelOnboardingNamespace],
			Name:      request.GetLabels()[labelOnboardingName],
		}
	}
	return key, key.Name != ""
}

// owns returns an ErrAccessConflict if the request is not this identity's.
func (id requestIdentity) owns(request client.Object) error {
	for _, label := range []string{labelManagedBy, labelManagedPurpose} {
		if got, want := request.GetLabels()[label], id.labels[label]; got != want {
			return errors.Wrapf(ErrAccessConflict, "%s has the label %s=%s, and that of %s is %s", describeRequest(request),
				label, untrusted.Quote(got), id.labels[labelManagedBy], untrusted.Quote(want))
		}
	}
	return nil
}

// mark sets the identity's labels, annotations and finalizer, and leaves others alone.
func (id requestIdentity) mark(request client.Object) {
	request.SetLabels(merged(request.GetLabels(), id.labels))
	request.SetAnnotations(merged(request.GetAnnotations(), id.annotations))
	controllerutil.AddFinalizer(request, requestFinalizer)
}

// merged returns a map with the entries of both; those of b take precedence.
func merged(a, b map[string]string) map[string]string {
	result := map[string]string{}
	for _, m := range []map[string]string{a, b} {
		for key, value := range m {
			result[key] = value
		}
	}
	return result
}

// isMarked reports whether mark would change nothing.
func (id requestIdentity) isMarked(request client.Object) bool {
	return controllerutil.ContainsFinalizer(request, requestFinalizer) &&
		equality.Semantic.DeepEqual(request.GetLabels(), merged(request.GetLabels(), id.labels)) &&
		equality.Semantic.DeepEqual(request.GetAnnotations(), merged(request.GetAnnotations(), id.annotations))
}

// isCurrent reports whether the AccessRequest says what it should.
func (id requestIdentity) isCurrent(request *clustersv1alpha1.AccessRequest, token *clustersv1alpha1.TokenConfig) bool {
	return id.isMarked(request) && request.Spec.OIDC == nil && request.Spec.Token != nil &&
		equality.Semantic.DeepEqual(request.Spec.Token, token)
}

// leadsTo returns an ErrAccessConflict if the request is for another cluster than that of
// requestRef. The reference never changes, so another one was not made by this controller.
func leadsTo(request *clustersv1alpha1.AccessRequest, requestRef clustersv1alpha1.ObjectReference) error {
	if ref := request.Spec.RequestRef; ref == nil || *ref != requestRef {
		return errors.Wrapf(ErrAccessConflict, "spec.requestRef of %s is not %s/%s", describeRequest(request),
			requestRef.Namespace, requestRef.Name)
	}
	return nil
}

// isOnlyOurs reports whether no other controller still holds the request.
func isOnlyOurs(request client.Object) bool {
	return slices.Equal(request.GetFinalizers(), []string{requestFinalizer})
}

// secretReference returns the Secret with the kubeconfig of an AccessRequest. An error ends the
// connection, so a grant that is not renewed yet, or a later denial, is none.
func secretReference(object client.Object) (credential.SecretReference, error) {
	request := object.(*clustersv1alpha1.AccessRequest)
	if ref := request.Status.SecretRef; ref != nil && ref.Name != "" {
		return credential.SecretReference{
			Namespace: request.Namespace,
			Name:      ref.Name,
			Key:       clustersv1alpha1.SecretKeyKubeconfig,
		}, nil
	}
	if request.Status.Phase == clustersv1alpha1.PhaseDenied {
		return credential.SecretReference{}, errors.Wrap(credential.ErrNotAllowed, "the platform denied access")
	}
	return credential.SecretReference{}, errors.Wrap(credential.ErrPending, "the AccessRequest has no status.secretRef")
}

// isUsable reports whether access is granted as the request says now, with a Secret.
func isUsable(request *clustersv1alpha1.AccessRequest) bool {
	return request.IsGranted() && request.Status.SecretRef != nil && request.Status.SecretRef.Name != ""
}

// describeRequest returns the kind, namespace and name of a request.
func describeRequest(request client.Object) string {
	kind := "AccessRequest"
	if _, ok := request.(*clustersv1alpha1.ClusterRequest); ok {
		kind = "ClusterRequest"
	}
	return kind + " " + request.GetNamespace() + "/" + request.GetName()
}

// describeProgress returns what a request waits for, and since when, empty for nothing. The text
// does not change while the request does not.
func describeProgress(request client.Object) string {
	var status clustersv1alpha1.RequestStatus
	granted, progress := false, "is pending"
	switch r := request.(type) {
	case *clustersv1alpha1.ClusterRequest:
		status = r.Status.RequestStatus
		granted = r.IsGranted()
	case *clustersv1alpha1.AccessRequest:
		status = r.Status.RequestStatus
		granted = isUsable(r)
		if status.Phase == clustersv1alpha1.PhaseGranted {
			progress = "has no Secret yet"
			if !r.IsGranted() {
				progress = "is granted in an earlier form only"
			}
		}
	}
	since := request.GetCreationTimestamp()
	switch deleted := request.GetDeletionTimestamp(); {
	case deleted != nil:
		since = *deleted
		progress = "is being deleted, and held by " + untrusted.Shorten(strings.Join(request.GetFinalizers(), ", "))
	case granted:
		return ""
	case status.Phase == clustersv1alpha1.PhaseDenied:
		progress = "is denied"
	}
	return fmt.Sprintf("%s %s, since %s%s", describeRequest(request), progress, since.UTC().Format(time.RFC3339),
		explanation(status.Conditions))
}

// explanation returns what the platform says about a request that is not granted.
func explanation(conditions []metav1.Condition) (text string) {
	for _, condition := range conditions {
		if condition.Message != "" && meta.IsStatusConditionFalse(conditions, condition.Type) {
			text += fmt.Sprintf("; %s: %s", untrusted.Quote(condition.Type), untrusted.Shorten(condition.Message))
		}
	}
	return untrusted.Shorten(text)
}
