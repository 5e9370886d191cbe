package config

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed crd rbac admission admission-namespaced
var files embed.FS

// Manifests returns the files of crd, rbac and admission, or those of the given folders, as one YAML stream in the order
// to apply them. The folder admission-namespaced has an example to edit, so it is returned only when it is given.
func Manifests(folders ...string) string {
	if len(folders) == 0 {
		folders = []string{"crd", "rbac", "admission"}
	}
	var documents []string
	for _, folder := range folders {
		// The files are part of the program, so this does not fail.
		_ = fs.WalkDir(files, folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				content, _ := files.ReadFile(path)
				documents = append(documents, string(content))
			}
			return err
		})
	}
	return strings.Join(documents, "\n---\n")
}
