package identity

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Rule returns the RBAC rule that grants the verbs on a resource, or only on the objects with the
// given names, as YAML in a line. A message that says which permission is missing names this rule,
// which grants nothing else, and never a role, which may grant more or something else.
func Rule(resource schema.GroupResource, names []string, verbs ...string) string {
	rule := "{apiGroups: " + listOf(resource.Group) + ", resources: " + listOf(resource.Resource)
	if len(names) > 0 {
		rule += ", resourceNames: " + listOf(names...)
	}
	return rule + ", verbs: " + listOf(verbs...) + "}"
}

func listOf(values ...string) string {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = strconv.Quote(value)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
