package clustersv1alpha1

import (
	"embed"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API version of the requests.
var GroupVersion = schema.GroupVersion{Group: "clusters.openmcp.cloud", Version: "v1alpha1"}

// CRDs has the definitions of the kinds in the directory crds, for tests and demos. A platform
// cluster has its own, with more fields: do not replace them.
//
//go:embed crds/*.yaml
var CRDs embed.FS

// AddToScheme registers the kinds.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ClusterRequest{}, &ClusterRequestList{}, &AccessRequest{}, &AccessRequestList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
