package config

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed crd rbac admission admission-olm admission-namespaced admission-kubeconfigs rbac-examples
var files embed.FS

// Folder is a folder of this package.
type Folder struct{ name string }

// The folders. Those after Admission are applied only where asked for: AdmissionOLM guards another
// project's kind, and the others have examples to edit.
var (
	CRD                  = Folder{"crd"}
	RBAC                 = Folder{"rbac"}
	Admission            = Folder{"admission"}
	AdmissionOLM         = Folder{"admission-olm"}
	AdmissionNamespaced  = Folder{"admission-namespaced"}
	AdmissionKubeconfigs = Folder{"admission-kubeconfigs"}
	RBACExamples         = Folder{"rbac-examples"}
)

// Manifests returns the files of CRD, RBAC and Admission, or those of the given folders, as one
// YAML stream in the order to apply them.
func Manifests(folders ...Folder) string {
	if len(folders) == 0 {
		folders = []Folder{CRD, RBAC, Admission}
	}
	var documents []string
	for _, folder := range folders {
		// The files are part of the program and the names ours, so this does not fail.
		_ = fs.WalkDir(files, folder.name, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				content, _ := files.ReadFile(path)
				documents = append(documents, string(content))
			}
			return err
		})
	}
	return strings.Join(documents, "\n---\n")
}
