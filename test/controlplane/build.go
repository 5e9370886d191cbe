package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
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
	compile func(ctx context.Context, program, file string, progress func(packages int)) error
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
	fmt.Fprintf(b.out, "This happens once per machine and takes up to 5 minutes on 2 cores.\n")
	start := b.now()
	for i, program := range programs {
		if err := b.buildOne(ctx, fmt.Sprintf("[%d/%d] %s", i+1, len(programs), program), program,
			filepath.Join(tmp, program)); err != nil {
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

func (b builder) buildOne(ctx context.Context, label, program, file string) error {
	var packages atomic.Int64
	start := b.now()
	done := make(chan error, 1)
	go func() {
		done <- b.compile(ctx, program, file, func(n int) { packages.Store(int64(n)) })
	}()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err == nil {
				fmt.Fprintf(b.out, "%s: done in %s\n", label, b.now().Sub(start).Round(time.Second))
			}
			return err
		case <-tick.C:
			fmt.Fprintf(b.out, "%s: %d packages compiled, %s\n", label, packages.Load(),
				b.now().Sub(start).Round(time.Second))
		}
	}
}

// goBuild compiles cmd/<program> of this module. It runs in the module's directory, where "go run"
// put us.
func goBuild(ctx context.Context, program, file string, progress func(packages int)) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-trimpath",
		"-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion="+kubernetesVersion,
		"-o", file, "./cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// With -v the go command names each package it compiles on a line; what else it says is a
	// download or an error.
	var said []string
	packages := 0
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "go: downloading"):
		case line != "" && !strings.ContainsAny(line, " :"):
			packages++
			progress(packages)
		default:
			said = append(said, line)
		}
	}
	if err := cmd.Wait(); err != nil {
		return errors.Join(err, errors.New(strings.Join(said, "\n")))
	}
	return nil
}
