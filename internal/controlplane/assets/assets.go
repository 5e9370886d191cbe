package assets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// KubernetesVersion and EtcdVersion are the versions that test/controlplane builds; a test keeps
// them equal to its go.mod.
const (
	KubernetesVersion = "v1.36.3"
	EtcdVersion       = "v3.6.8"
)

// Env is the variable that takes precedence over every other place, as in setup-envtest and
// controller-runtime.
const Env = "KUBEBUILDER_ASSETS"

// Programs are the programs in a complete directory.
var Programs = []string{"kube-apiserver", "etcd", "kubectl", "kube-controller-manager"}

// ErrMissing is in the chain of the error that Find returns when no directory has all the programs.
var ErrMissing = errors.New("control plane programs not found")

// Find returns the first directory with all of Programs: $KUBEBUILDER_ASSETS if set, then the store
// of setup-envtest, then the cache of this user that "make controlplane" fills.
//
// A $KUBEBUILDER_ASSETS that lacks a program is an error, because the user chose that directory.
// The store of setup-envtest often lacks kube-controller-manager; Find skips the store then.
func Find() (string, error) {
	if dir := os.Getenv(Env); dir != "" {
		if missing := lacking(dir); len(missing) > 0 {
			return "",
				fmt.Errorf("%w: %s=%s lacks %s; unset the variable and run \"make controlplane\" to build the programs",
					ErrMissing, Env, dir, strings.Join(missing, ", "))
		}
		return dir, nil
	}
	cacheDir, err := Dir()
	if err != nil {
		return "", err
	}
	for _, dir := range append(envtestStore(), cacheDir) {
		if len(lacking(dir)) == 0 {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: run \"make controlplane\" once (about 5 minutes), or set %s", ErrMissing, Env)
}

// Dir returns the directory to which "make controlplane" writes the programs: a directory in this
// user's cache, named for their versions.
func Dir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no per-user cache directory (is HOME set?): %w", err)
	}
	return filepath.Join(cache, "latchkey", "controlplane",
		fmt.Sprintf("kubernetes-%s-etcd-%s-%s-%s", KubernetesVersion, EtcdVersion, runtime.GOOS, runtime.GOARCH)), nil
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
	minor := KubernetesVersion[1:strings.LastIndex(KubernetesVersion, ".")]
	dirs, err := filepath.Glob(filepath.Join(data, "kubebuilder-envtest", "k8s",
		fmt.Sprintf("%s.*-%s-%s", minor, runtime.GOOS, runtime.GOARCH)))
	if err != nil {
		return nil
	}
	return dirs
}

func lacking(dir string) (missing []string) {
	for _, program := range Programs {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			missing = append(missing, program)
		}
	}
	return missing
}
