package main

import (
	"slices"
	"strings"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// namespaceList is a flag.Value with the namespaces in which ServiceAccounts are read. An empty
// list means all namespaces.
type namespaceList []string

// String implements flag.Value.
func (n *namespaceList) String() string { return strings.Join(*n, ",") }

// Set implements flag.Value. A later value replaces an earlier one.
func (n *namespaceList) Set(value string) error {
	*n = nil
	if value == "" {
		return nil
	}
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return errors.Errorf("%q is not a namespace: %s", name, problems[0])
		}
		*n = append(*n, name)
	}
	slices.Sort(*n)
	*n = slices.Compact(*n)
	return nil
}

// byObject returns the restriction for the manager's cache.
func (n *namespaceList) byObject() map[client.Object]cache.ByObject {
	if len(*n) == 0 {
		return nil
	}
	namespaces := map[string]cache.Config{}
	for _, name := range *n {
		namespaces[name] = cache.Config{}
	}
	return map[client.Object]cache.ByObject{serviceAccountMetadata(): {Namespaces: namespaces}}
}

// serviceAccountMetadata returns the object with which latchkey reads ServiceAccounts.
func serviceAccountMetadata() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}}
}
