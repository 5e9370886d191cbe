package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/latchkey-dev/latchkey/test/controlplane/compile"
)

// programs are the commands in cmd/, smallest first, so that a problem shows early.
var programs = []string{"etcd", "kubectl", "kube-apiserver", "kube-controller-manager"}

//go:embed go.mod
var goMod string

// kubernetesVersion is what the built programs report; without it they would call themselves
// v0.0.0.
var kubernetesVersion = regexp.MustCompile(`k8s\.io/kubernetes (v\S+)`).FindStringSubmatch(goMod)[1]

// builder makes a directory of programs. compile and now are replaced by tests.
type builder struct {
	compile func(ctx context.Context, program, file string, progress *compile.Progress) error
	out     io.Writer
	now     func() time.Time
}

// build makes dst hold every program. It returns at once when dst exists already: dst is only ever
// renamed into place complete.
func (b builder) build(ctx context.Context, dst string, programs []string) (err error) {
	dst, err = filepath.Abs(dst)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	lock := flock.New(dst + ".lock")
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := b.lock(ctx, lock); err != nil {
		return err
	}
	if _, err := os.Stat(dst); err == nil {
		return nil
	}

	// We hold the lock, so whatever lies here belongs to a build that was killed.
	leftovers, err := filepath.Glob(dst + ".building-*")
	if err != nil {
		return err
	}
	for _, dir := range leftovers {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dst), filepath.Base(dst)+".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // gone already after the rename

	fmt.Fprintf(b.out, "Building %s of Kubernetes %s from Go modules.\n", strings.Join(programs, ", "), kubernetesVersion)
	fmt.Fprintf(b.out, "This happens once per machine and took up to 5 minutes on 2 cores elsewhere.\n")
	start := b.now()
	for i, program := range programs {
		progress := compile.NewProgress(fmt.Sprintf("[%d/%d] %s", i+1, len(programs), program), b.out, b.now)
		if err := b.compile(ctx, program, filepath.Join(tmp, program), progress); err != nil {
			return fmt.Errorf("building %s: %w", program, err)
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := os.Rename(tmp, dst); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "Built in %s: %s\n", b.now().Sub(start).Round(time.Second), dst)
	return nil
}

// lock waits for another process that builds dst now, and reports that it waits.
func (b builder) lock(ctx context.Context, lock *flock.Flock) error {
	if locked, err := lock.TryLock(); err != nil || locked {
		return err
	}
	fmt.Fprintf(b.out, "Another process builds the control plane; waiting for it (%s)\n", lock.Path())
	_, err := lock.TryLockContext(ctx, 100*time.Millisecond)
	return err
}

// goBuild compiles cmd/<program> of this module. It runs in the module's directory, where "go run"
// put us.
func goBuild(ctx context.Context, program, file string, progress *compile.Progress) error {
	return compile.Run(ctx, progress, compile.Program{
		Dir:     ".",
		Package: "./cmd/" + program,
		File:    file,
		Flags: []string{"-trimpath",
			"-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=" + kubernetesVersion},
		Env: []string{"CGO_ENABLED=0", "GOWORK=off"},
	})
}
