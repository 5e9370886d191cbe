package assets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// KubernetesVersion and EtcdVersion are the versions that test/controlplane builds; a test keeps
// them equal to its go.mod.
const (
	KubernetesVersion = "v1.37.2"
	EtcdVersion       = "v3.7.3"
)

// Env is the variable that takes precedence over every other place, as in setup-envtest and
// controller-runtime.
const Env = "KUBEBUILDER_ASSETS"

// Programs are the programs of a control plane, in one directory.
var Programs = []string{"kube-apiserver", "etcd", "kubectl"}

// ControllerManager is a program that only some tests need. Prebuilt control planes do not have it.
const ControllerManager = "kube-controller-manager"

// ErrMissing is in the chain of the error of Find and FindControllerManager when the programs are
// nowhere on this machine.
var ErrMissing = errors.New("control plane programs not found")

// Find returns the directory that Locate finds.
func Find() (string, error) {
	dir, _, err := Locate()
	return dir, err
}

// Locate returns the first directory with all of Programs, and what kind of place that is:
// $KUBEBUILDER_ASSETS if set, then the store of setup-envtest, then the cache of this user that
// "make run" and "make controlplane" fill, then a directory of $PATH whose kube-apiserver is of our
// minor version.
//
// A $KUBEBUILDER_ASSETS that lacks a program is an error, because the user chose that directory.
func Locate() (dir, place string, err error) {
	if dir := os.Getenv(Env); dir != "" {
		if missing := lacking(dir, Programs...); len(missing) > 0 {
			return "", "",
				fmt.Errorf("%w: %s=%s lacks %s; unset the variable and run \"make controlplane\" to get the programs",
					ErrMissing, Env, dir, strings.Join(missing, ", "))
		}
		return dir, Env, nil
	}
	cached, err := cacheDirs()
	if err != nil {
		return "", "", err
	}
	for _, among := range []struct {
		place string
		dirs  []string
	}{{"the store of setup-envtest", complete(envtestStore())}, {"the cache", cached}, {"$PATH", onPath()}} {
		for _, dir := range among.dirs {
			if len(lacking(dir, Programs...)) == 0 {
				return dir, among.place, nil
			}
		}
	}
	return "", "", fmt.Errorf("%w: run \"make controlplane\" once, or set %s (it takes minutes, because "+
		"kube-controller-manager is always built)", ErrMissing, Env)
}

// FindControllerManager returns the file of kube-controller-manager: in the directory of Find, or
// in the cache of this user.
func FindControllerManager() (string, error) {
	dirs, err := cacheDirs()
	if err != nil {
		return "", err
	}
	if dir, err := Find(); err == nil {
		dirs = append([]string{dir}, dirs...)
	}
	for _, dir := range dirs {
		if len(lacking(dir, ControllerManager)) == 0 {
			return filepath.Join(dir, ControllerManager), nil
		}
	}
	return "", fmt.Errorf("%w: %s: run \"make controlplane\" once", ErrMissing, ControllerManager)
}

// PrebuiltDir returns the directory for prebuilt programs, in this user's cache.
func PrebuiltDir() (string, error) { return inCache("prebuilt-" + Minor()) }

// BuiltDir returns the directory for programs that are built from Go modules, in this user's cache.
func BuiltDir() (string, error) {
	return inCache("kubernetes-" + KubernetesVersion + "-etcd-" + EtcdVersion)
}

// ControllerManagerDir returns the directory for the kube-controller-manager that is built from Go
// modules, in this user's cache.
func ControllerManagerDir() (string, error) {
	return inCache(ControllerManager + "-" + KubernetesVersion)
}

// Minor returns the minor version of Kubernetes, such as "1.37".
func Minor() string { return KubernetesVersion[1:strings.LastIndex(KubernetesVersion, ".")] }

// inCache returns a directory in this user's cache.
func inCache(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no per-user cache directory (is HOME set?): %w", err)
	}
	return filepath.Join(cache, "latchkey", "controlplane", fmt.Sprintf("%s-%s-%s", name, runtime.GOOS, runtime.GOARCH)),
		nil
}

// cacheDirs returns all directories in this user's cache.
func cacheDirs() (dirs []string, err error) {
	for _, dirOf := range []func() (string, error){PrebuiltDir, BuiltDir, ControllerManagerDir} {
		dir, err := dirOf()
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// envtestStore returns the directories of setup-envtest's store that hold our minor version.
func envtestStore() []string {
	data := os.Getenv("XDG_DATA_HOME")
	if data == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil
		}
		data = filepath.Join(home, ".local", "share")
	}
	dirs, err := filepath.Glob(filepath.Join(data, "kubebuilder-envtest", "k8s",
		fmt.Sprintf("%s.*-%s-%s", Minor(), runtime.GOOS, runtime.GOARCH)))
	if err != nil {
		return nil
	}
	return dirs
}

// complete returns the directories of setup-envtest's store that are whole: setup-envtest makes a
// directory read-only when everything is in it.
func complete(store []string) (dirs []string) {
	for _, dir := range store {
		if info, err := os.Stat(dir); err == nil && info.Mode()&0o222 == 0 {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// onPath returns the directories of $PATH that have all programs, if their kube-apiserver is of our
// minor version.
func onPath() (dirs []string) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if !filepath.IsAbs(dir) || len(lacking(dir, Programs...)) > 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		version, err := exec.CommandContext(ctx, filepath.Join(dir, "kube-apiserver"), "--version").Output()
		cancel()
		if err == nil && strings.HasPrefix(string(version), "Kubernetes v"+Minor()+".") {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func lacking(dir string, programs ...string) (missing []string) {
	for _, program := range programs {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			missing = append(missing, program)
		}
	}
	return missing
}
