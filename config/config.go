// Package config holds the YAML that a cluster needs, for kubectl and, embedded, for programs.
//
// # Setup
//
//	kubectl apply -f config/crd -f config/rbac -f config/admission
//
// # Usage
//
// crd has our own ClusterExtension, rbac what a host operator needs for itself, admission the policy that lets
// nobody name a ServiceAccount that they may not act as. Programs read the same from [Files] or [Manifests].
//
// # Considerations
//
// Leave crd out where Operator Lifecycle Manager is installed. A cluster-scoped extension without the admission
// policy, or the like, lets whoever may write it act as any ServiceAccount of the cluster.
package config

import (
	"embed"
	"io/fs"
	"strings"
)

// Files are the YAML files of this folder.
//
//go:embed crd rbac admission
var Files embed.FS

// Manifests returns all files, or those of the given folders, as one YAML stream in the order to apply them.
func Manifests(folders ...string) string {
	if len(folders) == 0 {
		folders = []string{"crd", "rbac", "admission"}
	}
	var documents []string
	for _, folder := range folders {
		// The files are part of the program, so this does not fail.
		_ = fs.WalkDir(Files, folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				content, _ := Files.ReadFile(path)
				documents = append(documents, string(content))
			}
			return err
		})
	}
	return strings.Join(documents, "\n---\n")
}
