package config

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed crd rbac admission admission-olm admission-namespaced admission-kubeconfigs rbac-examples stateapi stateapi-fleet
var files embed.FS

// Folder names a folder of manifests in this package.
type Folder struct{ name string }

// The folders. Manifests returns the folders after Admission only on request.
var (
	// CRD has the definition of ClusterExtensions.
	CRD = Folder{"crd"}
	// RBAC has the permissions of the host operator.
	RBAC = Folder{"rbac"}
	// Admission has the policy that guards ClusterExtensions.
	Admission = Folder{"admission"}
	// AdmissionOLM has the policy that guards Operator Lifecycle Manager's kind of that name.
	AdmissionOLM = Folder{"admission-olm"}
	// AdmissionNamespaced has an example of a policy for a namespaced kind. Edit it.
	AdmissionNamespaced = Folder{"admission-namespaced"}
	// AdmissionKubeconfigs has an example of a policy for a kind that names Secrets. Edit it.
	AdmissionKubeconfigs = Folder{"admission-kubeconfigs"}
	// RBACExamples has examples of narrower permissions of the host operator. Edit them.
	RBACExamples = Folder{"rbac-examples"}
	// StateAPI has what a state API needs: Service, APIService, permissions. See StateAPIManifests.
	StateAPI = Folder{"stateapi"}
	// StateAPIFleet has what it needs beside that where replicas share the extensions.
	StateAPIFleet = Folder{"stateapi-fleet"}
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
