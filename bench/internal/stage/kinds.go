package stage

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kind is one of those that each tenant watches in its own namespace.
type kind struct {
	group, resource string
	object          func(m metav1.ObjectMeta) client.Object
}

var kinds = []kind{
	{"", "configmaps", func(m metav1.ObjectMeta) client.Object { return &corev1.ConfigMap{ObjectMeta: m} }},
	{"", "secrets", func(m metav1.ObjectMeta) client.Object { return &corev1.Secret{ObjectMeta: m} }},
	{"", "limitranges", func(m metav1.ObjectMeta) client.Object { return &corev1.LimitRange{ObjectMeta: m} }},
	{"", "resourcequotas", func(m metav1.ObjectMeta) client.Object { return &corev1.ResourceQuota{ObjectMeta: m} }},
	{"", "serviceaccounts", func(m metav1.ObjectMeta) client.Object { return &corev1.ServiceAccount{ObjectMeta: m} }},
	{"coordination.k8s.io", "leases", func(m metav1.ObjectMeta) client.Object {
		return &coordinationv1.Lease{ObjectMeta: m}
	}},
	{"policy", "poddisruptionbudgets", func(m metav1.ObjectMeta) client.Object {
		return &policyv1.PodDisruptionBudget{ObjectMeta: m}
	}},
	{"networking.k8s.io", "networkpolicies", func(m metav1.ObjectMeta) client.Object {
		return &networkingv1.NetworkPolicy{ObjectMeta: m}
	}},
	{"discovery.k8s.io", "endpointslices", func(m metav1.ObjectMeta) client.Object {
		return &discoveryv1.EndpointSlice{ObjectMeta: m, AddressType: discoveryv1.AddressTypeIPv4}
	}},
	{rbacv1.GroupName, "roles", func(m metav1.ObjectMeta) client.Object { return &rbacv1.Role{ObjectMeta: m} }},
}

// RulesOfKinds returns the permission to watch all kinds that a tenant watches in its own
// namespace.
func RulesOfKinds() (rules []rbacv1.PolicyRule) {
	for _, k := range kinds {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{k.group},
			Resources: []string{k.resource},
			Verbs:     []string{"list", "watch"},
		})
	}
	return rules
}
