package versions

import "k8s.io/apimachinery/pkg/util/resourceversion"

// IsAfter reports whether a version is known to be later than another one.
func IsAfter(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order > 0
}

// Later returns the later of two versions, the second if they cannot be compared. An empty one is
// earlier than any.
func Later(one, other string) string {
	if other == "" || IsAfter(one, other) {
		return one
	}
	return other
}

// Reached reports whether a version is the wanted one or later. An empty version is earlier than
// any other. Versions that cannot be compared are reached: nothing can be waited for.
func Reached(version, wanted string) bool {
	if version == "" || wanted == "" {
		return wanted == ""
	}
	order, err := resourceversion.CompareResourceVersion(version, wanted)
	return err != nil || order >= 0
}

// ByNamespace are the latest versions by namespace.
type ByNamespace map[string]string

// Note records a version.
func (v ByNamespace) Note(namespace, version string) { v[namespace] = Later(v[namespace], version) }

// NoteAll records versions.
func (v ByNamespace) NoteAll(others ByNamespace) {
	for namespace, version := range others {
		v.Note(namespace, version)
	}
}

// Latest returns the latest version of all namespaces, empty if there is none.
func (v ByNamespace) Latest() (latest string) {
	for _, version := range v {
		latest = Later(latest, version)
	}
	return latest
}
