package leastrole

import (
	"strings"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// ClusterWide is the power of what a Role cannot grant.
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

// PowerOf returns which power over others a permission gives, as a word, and what that means; ""
// if it gives none. Permissions of no namespace are ClusterWide.
func PowerOf(p permissions.Permission) (power, meaning string) {
	name := p.Resource
	if p.Subresource != "" {
		name += "/" + p.Subresource
	}
	switch {
	case p.Verb == "bind" || p.Verb == "escalate":
		return p.Verb, "any permission of the role"
	case strings.HasPrefix(p.Verb, "impersonate"):
		return "impersonate", "acts as others"
	case p.Group == "" && powers[name] != "":
		return name, powers[name]
	case p.Namespace == "":
		return ClusterWide, "a ClusterRole"
	}
	return "", ""
}
