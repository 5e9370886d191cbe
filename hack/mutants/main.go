package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
)

// machines are the pure machines: every decision has mutants.
var machines = []string{"accessor/internal/lifecycle", "scopedcache/internal/members", "scopedcache/internal/monitor",
	"stateapi/internal/merge"}

// guarded are packages whose mutants break guards against rare interleavings.
var guarded = []string{"accessor/internal/connection", "accessor/internal/fencedconn", "accessor/internal/rooms",
	"accessor/internal/targets",
	"clustercache", "credential", "internal/ownwrites", "internal/replay", "internal/versions", "scopedcache",
	"scopedcache/internal/lightinformer",
	"adapters/clusterapi"}

// tests returns the command that tests a package, which may be a module of its own.
func tests(pkg string, flags ...string) *exec.Cmd {
	dir, name := ".", "./"+pkg
	if _, err := os.Stat(filepath.Join(pkg, "go.mod")); err == nil {
		dir, name = pkg, "."
	}
	return exec.Command("go", slices.Concat([]string{"-C", dir, "test", "-count=1"}, flags, []string{name})...)
}

func main() {
	only := flag.String("only", "", "run only the mutants whose names contain this text")
	flag.Parse()
	if err := run(*only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(only string) error {
	survivors := 0
	for _, machine := range slices.Concat(machines, guarded) {
		patches, err := filepath.Glob(filepath.Join(machine, "testdata", "mutants", "*.patch"))
		if err != nil {
			return err
		}
		if len(patches) == 0 {
			return errors.Errorf("%s has no mutants; run this from the root of the module", machine)
		}
		patches = slices.DeleteFunc(patches, func(patch string) bool {
			return !strings.Contains(filepath.Base(patch), only)
		})
		if len(patches) == 0 {
			continue
		}
		if out, err := tests(machine).CombinedOutput(); err != nil {
			return errors.Errorf("the tests of %s fail without a mutant: %s", machine, out)
		}
		for _, patch := range patches {
			start := time.Now()
			caught, result, err := try(machine, patch)
			if err != nil {
				return errors.WithMessage(err, patch)
			}
			if !caught {
				survivors++
				result = "SURVIVES"
			}
			fmt.Printf("%s %s: %s (%.0f s)\n", machine, strings.TrimSuffix(filepath.Base(patch), ".patch"), result,
				time.Since(start).Seconds())
		}
	}
	if survivors > 0 {
		return errors.Errorf("%d mutants survive", survivors)
	}
	return nil
}

// crashed matches what a process prints that ends otherwise than by a test that fails.
var crashed = regexp.MustCompile(`panic:|fatal error:|goleak:`)

// failed matches the names of the tests that failed.
var failed = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// catcher matches the test that a patch names, which runs before all others.
var catcher = regexp.MustCompile(`(?m)^Caught by (\w+)\.$`)

// try runs the tests of a package with a patch, and returns the names of the tests that failed.
func try(machine, patch string) (caught bool, result string, err error) {
	text, err := os.ReadFile(patch)
	if err != nil {
		return false, "", err
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return false, "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := patched(machine, patch, dir)
	if err != nil {
		return false, "", err
	}
	flags := []string{"-timeout", "10m", "-overlay", overlay}
	var out []byte
	if named := catcher.FindSubmatch(text); named != nil {
		out, err = tests(machine, append(flags, "-run", "^"+string(named[1])+"$")...).CombinedOutput()
	}
	if err == nil {
		out, err = tests(machine, flags...).CombinedOutput()
	}
	if err == nil {
		return false, "", nil
	}
	if strings.Contains(string(out), "panic: test timed out") {
		return false, "", errors.Errorf("the mutant hangs: %s", out)
	}
	names := failed.FindAllStringSubmatch(string(out), -1)
	if len(names) == 0 && !crashed.Match(out) {
		return false, "", errors.Errorf("the mutant does not run: %s", out)
	}
	for _, name := range names {
		result += " " + name[1]
	}
	if result == "" {
		result = " a panic"
	}
	return true, "caught by" + result, nil
}

// patched applies a patch to a copy of the package's files. patched returns the overlay that makes
// the build use the copy.
func patched(machine, patch, dir string) (overlay string, err error) {
	files, err := filepath.Glob(filepath.Join(machine, "*.go"))
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		target := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(target, code, 0o600); err != nil {
			return "", err
		}
		absolute, err := filepath.Abs(file)
		if err != nil {
			return "", err
		}
		replace[absolute] = target
	}
	absolute, err := filepath.Abs(patch)
	if err != nil {
		return "", err
	}
	apply := exec.Command("git", "apply", absolute)
	apply.Dir = dir
	if out, err := apply.CombinedOutput(); err != nil {
		return "", errors.Wrapf(err, "applying the patch: %s", out)
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, content, 0o600)
}
