package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API version of the kinds.
var GroupVersion = schema.GroupVersion{Group: "mail.example.com", Version: "v1alpha1"}

// AddToScheme registers the kinds.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Mailbox{}, &MailboxList{}, &ProviderConfig{}, &ProviderConfigList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// Mailbox orders a mailbox on the tenant's control plane.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:JSONPath=".status.phase",name="Phase",type=string
// +kubebuilder:printcolumn:JSONPath=".status.conditions[?(@.type=='Ready')].reason",name="Reason",type=string
// +kubebuilder:printcolumn:JSONPath=".status.conditions[?(@.type=='Ready')].message",name="Message",type=string
type Mailbox struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   MailboxSpec   `json:"spec,omitempty"`
	Status MailboxStatus `json:"status,omitempty"`
}

// MailboxSpec is what the tenant wants.
type MailboxSpec struct {
	// Address of the mailbox, before the domain.
	Address string `json:"address,omitempty"`
}

// MailboxStatus is what the provider reports.
type MailboxStatus struct {
	Phase              string `json:"phase,omitempty"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Finalizer implements serviceprovider.API.
func (m *Mailbox) Finalizer() string { return "mail.example.com/mailbox" }

// GetStatus implements serviceprovider.API.
func (m *Mailbox) GetStatus() any { return m.Status }

// GetConditions implements serviceprovider.API.
func (m *Mailbox) GetConditions() *[]metav1.Condition { return &m.Status.Conditions }

// SetPhase implements serviceprovider.API.
func (m *Mailbox) SetPhase(phase string) { m.Status.Phase = phase }

// SetObservedGeneration implements serviceprovider.API.
func (m *Mailbox) SetObservedGeneration(generation int64) { m.Status.ObservedGeneration = generation }

// MailboxList is a list of Mailboxes.
//
// +kubebuilder:object:root=true
type MailboxList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Mailbox `json:"items"`
}

// ProviderConfig configures the provider of the same name.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type ProviderConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ProviderConfigSpec `json:"spec,omitempty"`
}

// ProviderConfigSpec is what the platform team wants.
type ProviderConfigSpec struct {
	// Domain of all mailboxes.
	Domain string `json:"domain,omitempty"`
	// PollInterval is the time between two reconciles of a Mailbox, 0 for never.
	PollInterval metav1.Duration `json:"pollInterval,omitempty"`
	// SecretName is a Secret on the platform cluster that all mailboxes depend on.
	SecretName string `json:"secretName,omitempty"`
}

// PollInterval implements serviceprovider.Config.
func (c *ProviderConfig) PollInterval() time.Duration { return c.Spec.PollInterval.Duration }

// ProviderConfigList is a list of ProviderConfigs.
//
// +kubebuilder:object:root=true
type ProviderConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ProviderConfig `json:"items"`
}
