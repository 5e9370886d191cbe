package config

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed crd rbac admission admission-olm admission-namespaced admission-kubeconfigs rbac-examples
var files embed.FS

// Folder names a folder of manifests in this package.
type Folder struct{ name string }

// The folders. Manifests returns the folders after Admission only on request. AdmissionOLM guards
// another project's kind, and the other ones contain examples to edit.
var (
	CRD                  = Folder{"crd"}
	RBAC                 = Folder{"rbac"}
	Admission            = Folder{"admission"}
	AdmissionOLM         = Folder{"admission-olm"}
	AdmissionNamespaced  = Folder{"admission-namespaced"}
	AdmissionKubeconfigs = Folder{"admission-kubeconfigs"}
	RBACExamples         = Folder{"rbac-examples"}
)

// Manifests returns the files of the given folders as one YAML stream, in the order to apply them.
// Without folders, Manifests returns the files of CRD, RBAC and Admission.
func Manifests(folders ...Folder) string {
	if len(folders) == 0 {
		folders = []Folder{CRD, RBAC, Admission}
	}
	var documents []string
	for _, folder := range folders {
		// The files are embedded in the program, and the names are those of this package. So
		// WalkDir does not fail.
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
