// Command controlplane builds programs of a Kubernetes control plane from Go modules into one
// directory: those named, or kube-apiserver, etcd, kube-controller-manager and kubectl.
//
//	go run . -o DIR [-kubernetes v1.34.4] [PROGRAM...]
//
// DIR appears whole or not at all: everything is built beside DIR and renamed into place. Builds of
// the same DIR wait for each other (a file lock), so that the second finds the work done, and what
// a killed build left behind is swept away by the next. The commands to build lie in cmd/.
//
// This is a module of its own so that the large dependency graph of Kubernetes never reaches the
// users of latchkey. Within the repository "make controlplane" runs it with the right DIR.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func main() {
	dir := flag.String("o", "", "directory to build into; it must not exist or be complete")
	version := flag.String("kubernetes", kubernetesVersion, "version of Kubernetes")
	flag.Parse()
	wanted := programs
	if flag.NArg() > 0 {
		wanted = slices.DeleteFunc(slices.Clone(programs), func(program string) bool {
			return !slices.Contains(flag.Args(), program)
		})
	}
	if *dir == "" || flag.NArg() > 0 && len(wanted) != flag.NArg() {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	err := run(ctx, *dir, *version, wanted)
	if err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, version string, programs []string) error {
	if version == kubernetesVersion {
		return builder{compile: goBuild, out: os.Stderr, now: time.Now}.build(ctx, dir, programs)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return retargeted(ctx, version, append([]string{"-o", dir}, programs...)...)
}
