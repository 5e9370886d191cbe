// Command controlplane prints the directory with the programs of a control plane. If no directory
// has them, the command downloads prebuilt ones with setup-envtest. Where that is not possible, the
// command builds them from Go modules. Run the command from the root of the repository, or run
// "make controlplane".
//
// With -controller-manager, the command also builds kube-controller-manager, which some tests need,
// and which prebuilt control planes do not have.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/latchkey-dev/latchkey/internal/controlplane/assets"
)

// indexEnv is the variable with the address of an index of prebuilt control planes, in place of
// setup-envtest's own.
const indexEnv = "LATCHKEY_ENVTEST_INDEX"

func main() {
	withControllerManager := flag.Bool("controller-manager", false, "also build kube-controller-manager")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	e := ensurer{
		build: build,
		out:   os.Stderr,
		setUp: func(ctx context.Context) (string, error) {
			return setUpEnvtest(ctx, ".", "bin/setup-envtest")
		},
		download: downloader{index: os.Getenv(indexEnv), answerWithin: 10 * time.Second, patience: 5 * time.Minute},
	}
	dir, err := e.ensure(ctx, *withControllerManager)
	if err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		stop()
		os.Exit(1)
	}
	fmt.Println(dir)
}

// ensurer finds, downloads or builds programs. Tests replace build.
type ensurer struct {
	build    func(ctx context.Context, dir string, programs ...string) error
	setUp    func(ctx context.Context) (program string, err error) // returns setup-envtest
	download downloader
	out      io.Writer
}

// ensure returns the directory with the programs.
func (e ensurer) ensure(ctx context.Context, withControllerManager bool) (string, error) {
	dir, place, err := assets.Locate()
	if err == nil {
		fmt.Fprintf(e.out, "Control plane: from %s, %s\n", place, dir)
	}
	if errors.Is(err, assets.ErrMissing) && os.Getenv(assets.Env) == "" {
		err = e.get(ctx)
		if err == nil {
			dir, err = assets.Find()
		}
	}
	if err != nil || !withControllerManager {
		return dir, err
	}
	if _, err := assets.FindControllerManager(); err == nil {
		return dir, nil
	}
	own, err := assets.ControllerManagerDir()
	if err != nil {
		return "", err
	}
	return dir, e.build(ctx, own, assets.ControllerManager)
}

// get downloads the programs, or builds them and says why.
func (e ensurer) get(ctx context.Context) error {
	dir, err := assets.PrebuiltDir()
	if err != nil {
		return err
	}
	started := time.Now()
	fmt.Fprintf(e.out, "Control plane: neither %s, setup-envtest's store, the cache nor $PATH has Kubernetes %s\n",
		assets.Env, assets.Minor())
	fmt.Fprintf(e.out, "Looking for a prebuilt one with setup-envtest, which is compiled first\n")
	program, err := e.setUp(ctx)
	if err == nil {
		err = e.download.download(ctx, program, dir, e.out)
	}
	if err == nil {
		fmt.Fprintf(e.out, "Downloaded in %s: %s\n", time.Since(started).Round(time.Second), dir)
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Fprintf(e.out, "No prebuilt control plane: %s\n", err)
	fmt.Fprintf(e.out, "Building one instead, once per machine: it took about 5 minutes on 2 cores elsewhere\n")
	if dir, err = assets.BuiltDir(); err != nil {
		return err
	}
	return e.build(ctx, dir, assets.Programs...)
}

// setUpEnvtest builds setup-envtest, which the module in the folder tools of the repository pins,
// and returns its file.
func setUpEnvtest(ctx context.Context, repository, file string) (string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	tools, err := filepath.Abs(filepath.Join(repository, "tools"))
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, "go", "run", "-C", filepath.Join(repository, "test", "controlplane"), "./gobuild",
		"-C", tools, "-o", file, "sigs.k8s.io/controller-runtime/tools/setup-envtest")
	var said bytes.Buffer
	build.Stderr = io.MultiWriter(os.Stderr, &said)
	build.Cancel = func() error { return build.Process.Signal(os.Interrupt) }
	build.WaitDelay = 10 * time.Second
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("building setup-envtest: %w: %s", err, lastLine(said.String()))
	}
	return file, nil
}

// build builds programs from Go modules into dir.
func build(ctx context.Context, dir string, programs ...string) error {
	command := exec.CommandContext(ctx, "go", append([]string{"run", "-C", "test/controlplane", ".", "-o", dir},
		programs...)...)
	command.Stderr = os.Stderr
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	if err := command.Run(); err != nil {
		return fmt.Errorf("building the control plane: %w", err)
	}
	return nil
}
