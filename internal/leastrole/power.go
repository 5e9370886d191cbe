package leastrole

import (
	"slices"
	"strings"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// ClusterWide begins the power of what a Role cannot grant.
const ClusterWide = "cluster-wide"

// powers are resources whose permissions give power over others in the same namespace, at least.
var powers = map[string]string{
	"secrets":                  "tokens and keys of others",
	"serviceaccounts/token":    "acts as the ServiceAccount",
	"pods/exec":                "acts as the Pod",
	"pods/attach":              "acts as the Pod",
	"pods/portforward":         "reaches what the Pod serves to itself",
	"pods/ephemeralcontainers": "acts as the Pod",
	"pods/proxy":               "passes NetworkPolicies",
	"services/proxy":           "passes NetworkPolicies",
	"nodes/proxy":              "all Pods of the node",
}

// powersToWrite are the same, for permissions to write.
var powersToWrite = map[string]string{
	"serviceaccounts":                           "annotations give rights in a cloud",
	"endpoints":                                 "leads Services elsewhere",
	"resourcequotas":                            "lifts limits",
	"limitranges":                               "lifts limits",
	"roles.rbac.authorization.k8s.io":           "who may do what in the namespace",
	"rolebindings.rbac.authorization.k8s.io":    "who may do what in the namespace",
	"networkpolicies.networking.k8s.io":         "who reaches whom",
	"endpointslices.discovery.k8s.io":           "leads Services elsewhere",
	"referencegrants.gateway.networking.k8s.io": "opens the namespace to others",
}

// runsPods are resources that run as any ServiceAccount of their namespace.
var runsPods = []string{"pods", "replicationcontrollers", "deployments.apps", "daemonsets.apps", "statefulsets.apps",
	"replicasets.apps", "jobs.batch", "cronjobs.batch"}

// PowerOf returns which power over others a permission gives, as a word, and what that means; ""
// if it gives none. Permissions of no namespace are ClusterWide, with what they are about.
func PowerOf(p permissions.Permission) (power, meaning string) {
	name := p.Object()
	reads := p.Verb == "get" || p.Verb == "list" || p.Verb == "watch"
	switch {
	case p.Path == "" && strings.Contains(name, "*") || p.Verb == "*":
		return "everything", "a wildcard"
	case p.Verb == permissions.Bind || p.Verb == permissions.Escalate:
		return p.Verb, "any permission of the role"
	case strings.HasPrefix(p.Verb, "impersonate"):
		return "impersonate", "acts as others"
	case powers[name] != "":
		return name, powers[name]
	case p.Namespace == "":
		return ClusterWide + "/" + strings.TrimPrefix(name, "/"), "a ClusterRole"
	case !reads && powersToWrite[name] != "":
		return name, powersToWrite[name]
	}
	return "", ""
}

// RunsPods reports whether a permission lets Pods run, which may act as any ServiceAccount of their
// namespace and read its Secrets. That is what content is for, so it is no power.
func RunsPods(p permissions.Permission) bool {
	return (p.Verb == "create" || p.Verb == "update" || p.Verb == "patch") && slices.Contains(runsPods, p.Object())
}

// IsClusterWide reports whether a power is that of what takes a ClusterRole.
func IsClusterWide(power string) bool { return strings.HasPrefix(power, ClusterWide) }
