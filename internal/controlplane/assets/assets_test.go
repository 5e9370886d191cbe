package assets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// fill creates a directory with programs.
func fill(t *testing.T, dir string, programs ...string) string {
	t.Helper()
	g := NewWithT(t)
	g.Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	for _, program := range programs {
		g.Expect(os.WriteFile(filepath.Join(dir, program), nil, 0o755)).To(Succeed())
	}
	return dir
}

// home creates an empty home directory, in which Find finds no programs.
func home(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv(Env, "")
	t.Setenv("PATH", filepath.Join(dir, "bin"))
	return dir
}

func TestFindInOrder(t *testing.T) {
	g := NewWithT(t)
	dir := home(t)
	_, err := Find()
	g.Expect(err).To(MatchError(ErrMissing))
	g.Expect(err).To(MatchError(ContainSubstring("make controlplane")), "the error names the command")

	cacheDir, err := BuiltDir()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cacheDir).To(HavePrefix(filepath.Join(dir, ".cache", "latchkey")))
	fill(t, cacheDir, Programs...)
	g.Expect(Find()).To(Equal(cacheDir))

	store := filepath.Join(dir, ".local", "share", "kubebuilder-envtest", "k8s")
	minor := Minor()
	suffix := cacheDir[strings.LastIndex(cacheDir, EtcdVersion)+len(EtcdVersion):]
	partial := fill(t, filepath.Join(store, minor+".0"+suffix), "kube-apiserver", "etcd")
	g.Expect(Find()).To(Equal(cacheDir), "%s lacks kubectl", partial)
	prebuilt, err := PrebuiltDir()
	g.Expect(err).NotTo(HaveOccurred())
	fill(t, prebuilt, Programs...)
	g.Expect(Find()).To(Equal(prebuilt))
	whole := fill(t, filepath.Join(store, minor+".9"+suffix), Programs...)
	g.Expect(Find()).To(Equal(prebuilt), "setup-envtest still writes into %s", whole)
	g.Expect(os.Chmod(whole, 0o555)).To(Succeed())
	t.Cleanup(func() { _ = os.Chmod(whole, 0o755) })
	fill(t, filepath.Join(store, "1.20.0"+suffix), Programs...)
	g.Expect(Find()).To(Equal(whole), "not another minor version")

	set := fill(t, filepath.Join(dir, "set"), Programs...)
	t.Setenv(Env, set)
	g.Expect(Find()).To(Equal(set))
	t.Setenv(Env, partial)
	_, err = Find()
	g.Expect(err).To(MatchError(ContainSubstring("lacks kubectl")),
		"the variable takes precedence even if its directory is incomplete")
}

// Programs on $PATH are used if no other place has them, and if their kube-apiserver says that it
// is of our minor version.
func TestLocateOnPath(t *testing.T) {
	g := NewWithT(t)
	dir := home(t)
	bin := fill(t, filepath.Join(dir, "bin"), Programs...)
	version := func(v string) {
		g.Expect(os.WriteFile(filepath.Join(bin, "kube-apiserver"),
			[]byte("#!/bin/sh\necho Kubernetes "+v+"\n"), 0o755)).To(Succeed())
	}
	version("v1.20.1")
	_, _, err := Locate()
	g.Expect(err).To(MatchError(ErrMissing))
	version("v" + Minor() + ".0")
	found, place, err := Locate()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{found, place}).To(Equal([]string{bin, "$PATH"}))
	g.Expect(os.Remove(filepath.Join(bin, "kubectl"))).To(Succeed())
	_, _, err = Locate()
	g.Expect(err).To(MatchError(ErrMissing), "a program is missing")
	fill(t, bin, "kubectl")
	cached, err := BuiltDir()
	g.Expect(err).NotTo(HaveOccurred())
	fill(t, cached, Programs...)
	found, place, err = Locate()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{found, place}).To(Equal([]string{cached, "the cache"}))
}

// kube-controller-manager may be beside the other programs, or in the cache, wherever those are.
func TestFindControllerManager(t *testing.T) {
	g := NewWithT(t)
	dir := home(t)
	_, err := FindControllerManager()
	g.Expect(err).To(MatchError(ErrMissing))
	g.Expect(err).To(MatchError(ContainSubstring("make controlplane")))
	cached, err := ControllerManagerDir()
	g.Expect(err).NotTo(HaveOccurred())
	fill(t, cached, ControllerManager)
	g.Expect(FindControllerManager()).To(Equal(filepath.Join(cached, ControllerManager)))
	t.Setenv(Env, fill(t, filepath.Join(dir, "without"), Programs...))
	g.Expect(FindControllerManager()).To(Equal(filepath.Join(cached, ControllerManager)))
	with := fill(t, filepath.Join(dir, "with"), append(Programs, ControllerManager)...)
	t.Setenv(Env, with)
	g.Expect(FindControllerManager()).To(Equal(filepath.Join(with, ControllerManager)))
}

// The versions here name the cache directory; the other module's go.mod determines the versions
// that are built.
func TestVersionsAreThoseThatAreBuilt(t *testing.T) {
	g := NewWithT(t)
	goMod, err := os.ReadFile("../../../test/controlplane/go.mod")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(goMod)).To(ContainSubstring("\tk8s.io/kubernetes " + KubernetesVersion + "\n"))
	g.Expect(string(goMod)).To(ContainSubstring("\tgo.etcd.io/etcd/server/v3 " + EtcdVersion + "\n"))
	programs, err := os.ReadDir("../../../test/controlplane/cmd")
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, program := range programs {
		names = append(names, program.Name())
	}
	g.Expect(names).To(ConsistOf(append(Programs, ControllerManager)))
}
