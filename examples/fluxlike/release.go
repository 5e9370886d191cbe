package fluxlike

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API version of Release.
var GroupVersion = schema.GroupVersion{Group: "fluxlike.example.com", Version: "v1alpha1"}

// DefaultServiceAccount is the ServiceAccount of Releases that name none.
const DefaultServiceAccount = "deployer"

// OrphanAnnotation on a Release that is being deleted leaves its ConfigMap where it is. Without the
// annotation, a Release whose ServiceAccount is gone stays Terminating until the ServiceAccount is
// back.
const OrphanAnnotation = "fluxlike.example.com/orphan"

// Release says what a ConfigMap of the same name and namespace holds.
type Release struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ReleaseSpec   `json:"spec,omitempty"`
	Status ReleaseStatus `json:"status,omitempty"`
}

// ReleaseSpec is what the user wants.
type ReleaseSpec struct {
	// ServiceAccountName is the ServiceAccount to act as, in the Release's namespace. Empty means
	// DefaultServiceAccount.
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Data of the ConfigMap.
	Data map[string]string `json:"data,omitempty"`
}

// ReleaseStatus is what the operator reports.
type ReleaseStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ReleaseList is a list of Releases.
type ReleaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Release `json:"items"`
}

// DeepCopyObject implements runtime.Object. Your project would generate it.
func (r *Release) DeepCopyObject() runtime.Object {
	c := &Release{TypeMeta: r.TypeMeta, Spec: ReleaseSpec{ServiceAccountName: r.Spec.ServiceAccountName}}
	r.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	for key, value := range r.Spec.Data {
		if c.Spec.Data == nil {
			c.Spec.Data = map[string]string{}
		}
		c.Spec.Data[key] = value
	}
	c.Status.Conditions = append([]metav1.Condition(nil), r.Status.Conditions...)
	return c
}

// DeepCopyObject implements runtime.Object.
func (l *ReleaseList) DeepCopyObject() runtime.Object {
	c := &ReleaseList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*Release))
	}
	return c
}

// AddToScheme registers the kinds.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Release{}, &ReleaseList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
