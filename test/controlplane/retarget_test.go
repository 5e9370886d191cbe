package main

import (
	"strings"
	"testing"
)

func TestGoModOfAnotherVersion(t *testing.T) {
	got, err := goModOf("v1.34.4", goMod, "module k8s.io/kubernetes\n\nreplace (\n"+
		"\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kubectl => ./staging/src/k8s.io/kubectl\n)\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"module github.com/latchkey-dev/latchkey/test/controlplane\n",
		"\tk8s.io/kubernetes v1.34.4\n",
		"\tk8s.io/kubectl v0.34.4\n", "\tk8s.io/api => k8s.io/api v0.34.4\n", "\tgo.etcd.io/etcd/server/v3 v3."} {
		if !strings.Contains(got, part) {
			t.Errorf("%q is not in\n%s", part, got)
		}
	}
	for _, part := range []string{"indirect", "0.37", "1.37"} {
		if strings.Contains(got, part) {
			t.Errorf("%q is in\n%s", part, got)
		}
	}
	for _, version := range []string{"1.34.4", "v1.34", "v0.34.4", "latest"} {
		if _, err := goModOf(version, goMod, "\tk8s.io/api => ./staging/x\n"); err == nil {
			t.Errorf("%q is taken for a version", version)
		}
	}
}
