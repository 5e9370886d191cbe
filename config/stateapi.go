package config

import (
	"cmp"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/validation"
)

// StateAPIOptions say for which program the manifests of a state API are.
type StateAPIOptions struct {
	// Group of the kinds. Defaults to state.latchkey.dev.
	Group string
	// Namespace of the program and of the Service. Defaults to latchkey-system.
	Namespace string
	// Name of the Service, and the beginning of the names of all roles. Defaults to latchkey-state.
	Name string
	// ServiceAccount of the program. Defaults to latchkey.
	ServiceAccount string
	// Shared adds the files of [StateAPIFleet], for replicas that share the extensions. Their
	// Secret is <Name>-authority.
	Shared bool
}

// StateAPIManifests returns the files of [StateAPI] for a program, as one YAML stream.
func StateAPIManifests(options StateAPIOptions) (string, error) {
	group, name := cmp.Or(options.Group, "state.latchkey.dev"), cmp.Or(options.Name, "latchkey-state")
	namespace := cmp.Or(options.Namespace, "latchkey-system")
	account := cmp.Or(options.ServiceAccount, "latchkey")
	for _, check := range []struct {
		field    string
		problems []string
	}{
		{"group " + group, append(validation.IsDNS1123Subdomain(group), hasDot(group)...)},
		{"name " + name, validation.IsDNS1035Label(name)},
		{"namespace " + namespace, validation.IsDNS1123Label(namespace)},
		{"ServiceAccount " + account, validation.IsDNS1123Subdomain(account)},
	} {
		if len(check.problems) > 0 {
			return "", errors.Errorf("%s: %s", check.field, strings.Join(check.problems, "; "))
		}
	}
	var folders []Folder
	if options.Shared { // first: without it no replica can serve what the APIService leads to
		folders = append(folders, StateAPIFleet)
	}
	folders = append(folders, StateAPI)
	return strings.NewReplacer(
		"state.latchkey.dev", group,
		"latchkey-system", namespace,
		"latchkey-state", name,
		"name: latchkey\n", "name: "+account+"\n",
	).Replace(Manifests(folders...)), nil
}

func hasDot(group string) []string {
	if strings.Contains(group, ".") {
		return nil
	}
	return []string{"a group of an aggregated API has a dot"}
}
