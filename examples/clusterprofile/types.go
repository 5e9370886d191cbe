package clusterprofile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API version of ClusterProfile.
var GroupVersion = schema.GroupVersion{Group: "multicluster.x-k8s.io", Version: "v1alpha1"}

// ClusterProfile is a cluster of an inventory, as far as the example reads it.
type ClusterProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec,omitempty"`
	Status Status `json:"status,omitempty"`
}

// Spec is what the cluster manager says about the cluster.
type Spec struct {
	// DisplayName is the name of the cluster for people.
	DisplayName string `json:"displayName,omitempty"`
	// ClusterManager manages the cluster.
	ClusterManager ClusterManager `json:"clusterManager"`
}

// ClusterManager names what manages a cluster.
type ClusterManager struct {
	Name string `json:"name"`
}

// Status is what was observed.
type Status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// AccessProviders are the ways to reach the cluster, the preferred one first.
	AccessProviders []AccessProvider `json:"accessProviders,omitempty"`
}

// AccessProvider is a way to reach a cluster.
type AccessProvider struct {
	Name string `json:"name"`
	// Cluster is the API server, with the fields of a kubeconfig.
	Cluster Cluster `json:"cluster,omitempty"`
}

// Cluster is an API server.
type Cluster struct {
	Server                   string `json:"server"`
	TLSServerName            string `json:"tls-server-name,omitempty"`
	InsecureSkipTLSVerify    bool   `json:"insecure-skip-tls-verify,omitempty"`
	CertificateAuthorityData []byte `json:"certificate-authority-data,omitempty"`
	ProxyURL                 string `json:"proxy-url,omitempty"`
}

// List is a list of ClusterProfiles.
type List struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterProfile `json:"items"`
}

// DeepCopyObject implements runtime.Object. Your project would generate it.
func (c *ClusterProfile) DeepCopyObject() runtime.Object {
	copied := &ClusterProfile{TypeMeta: c.TypeMeta, Spec: c.Spec}
	c.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	copied.Status.Conditions = append([]metav1.Condition(nil), c.Status.Conditions...)
	for _, provider := range c.Status.AccessProviders {
		authorities := provider.Cluster.CertificateAuthorityData
		provider.Cluster.CertificateAuthorityData = append([]byte(nil), authorities...)
		copied.Status.AccessProviders = append(copied.Status.AccessProviders, provider)
	}
	return copied
}

// DeepCopyObject implements runtime.Object.
func (l *List) DeepCopyObject() runtime.Object {
	copied := &List{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&copied.ListMeta)
	for i := range l.Items {
		copied.Items = append(copied.Items, *l.Items[i].DeepCopyObject().(*ClusterProfile))
	}
	return copied
}

// AddToScheme registers the kinds.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ClusterProfile{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind("ClusterProfileList"), &List{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
