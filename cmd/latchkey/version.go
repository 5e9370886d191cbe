package main

import (
	"cmp"
	"fmt"
	"runtime/debug"
)

// release is the version of a release, which "make release" sets.
var release string

// version returns the version of the release, or else that of the module, as the Go toolchain
// recorded it in the binary, and the versions of the libraries that decide what a cluster must
// serve.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "latchkey (built without module information)"
	}
	text := fmt.Sprintf("latchkey %s, built with %s", cmp.Or(release, info.Main.Version), info.GoVersion)
	for _, dependency := range info.Deps {
		switch dependency.Path {
		case "sigs.k8s.io/controller-runtime", "k8s.io/client-go":
			text += fmt.Sprintf(", %s %s", dependency.Path, dependency.Version)
		}
	}
	return text
}
