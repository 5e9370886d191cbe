// Command conformance runs Cluster API's own tests with the adapter in place of its clustercache.
// Run the command from the root of the repository, or run "make conformance-clusterapi".
//
// The command copies Cluster API's module, in the version of the adapter's go.mod, from the module
// cache into a temporary folder. There it changes the import of controllers/clustercache in the
// tests of each suite, which is what a provider does, and runs the suites. Cluster API's packages
// themselves are not changed: they use the ClusterCache that they are given.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/controlplane/assets"
)

const (
	clusterAPI = "sigs.k8s.io/cluster-api"
	theirs     = `"sigs.k8s.io/cluster-api/controllers/clustercache"`
	ours       = "github.com/latchkey-dev/latchkey"
	adapter    = ours + "/adapters/clusterapi"
)

// suite is a package of Cluster API whose tests use a ClusterCache.
type suite struct {
	dir   string
	tests int // how many there are: fewer that pass are a failure
}

var suites = []suite{
	{"core/reconcilers/machine", 47},
	{"core/reconcilers/machineset", 36},
	{"core/reconcilers/machinepool", 18},
	{"core/reconcilers/cluster", 29},
	{"core/reconcilers/clusterresourceset", 7},
	{"core/reconcilers/machinehealthcheck", 9},
	{"core/reconcilers/machinedeployment", 33},
	{"core/reconcilers/topology/cluster", 34},
	{"internal/topology/upgrade", 1},
	{"controlplane/kubeadm/reconcilers/kubeadmcontrolplane", 72}, // uses the fake and the types only
}

// difference is a test that is not run, because it fails by design.
type difference struct{ test, reason string }

var differences = []difference{}

func main() {
	only := flag.String("suites", "", "a regular expression: run only the suites whose folder it matches")
	keep := flag.Bool("keep", false, "keep the temporary folder")
	flag.Parse()
	if err := run(*only, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(only string, keep bool) (err error) {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return errors.Wrap(err, "-suites")
	}
	programs, err := assets.Find()
	if err != nil {
		return err
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return errors.WithStack(err)
	}
	dir, err := os.MkdirTemp("", "latchkey-conformance-clusterapi-")
	if err != nil {
		return errors.WithStack(err)
	}
	if keep {
		fmt.Println("The copy of Cluster API is kept in", dir)
	} else {
		defer func() {
			if removeErr := os.RemoveAll(dir); err == nil {
				err = errors.WithStack(removeErr)
			}
		}()
	}
	module, err := copyModule(root, dir)
	if err != nil {
		return err
	}
	fmt.Printf("Running tests of %s with %s\n", module, adapter)
	for _, d := range differences {
		fmt.Printf("Not run: %s: %s\n", d.test, d.reason)
	}
	var failed []string
	ran := 0
	for _, s := range suites {
		if !chosen.MatchString(s.dir) {
			continue
		}
		ran++
		if err := s.run(dir, programs); err != nil {
			fmt.Printf("FAIL %s: %v\n", s.dir, err)
			failed = append(failed, s.dir)
		}
	}
	switch {
	case ran == 0:
		return errors.Errorf("no suite matches %q", only)
	case len(failed) > 0:
		return errors.Errorf("%d of %d suites failed: %s", len(failed), ran, strings.Join(failed, ", "))
	}
	return nil
}

// copyModule copies Cluster API's module into dir, and makes it use this repository's code and
// versions. It returns the module with its version.
func copyModule(root, dir string) (string, error) {
	own := filepath.Join(root, "adapters", "clusterapi")
	listed, err := output(own, "go", "list", "-m", "-f", "{{.Path}}@{{.Version}} {{.Dir}}", clusterAPI)
	if err != nil {
		return "", err
	}
	module, from, _ := strings.Cut(listed, " ")
	if err := copyTree(from, dir); err != nil {
		return "", err
	}
	edits := []string{"mod", "edit",
		"-dropreplace=" + clusterAPI + "/api", // the module in the cache does not contain it
		"-replace=" + ours + "=" + root, "-replace=" + adapter + "=" + own,
		"-require=" + ours + "@v0.0.0", "-require=" + adapter + "@v0.0.0",
	}
	if _, err := output(dir, "go", edits...); err != nil {
		return "", err
	}
	for _, sum := range []string{filepath.Join(root, "go.sum"), filepath.Join(own, "go.sum")} {
		if err := appendFile(filepath.Join(dir, "go.sum"), sum); err != nil {
			return "", err
		}
	}
	return module, nil
}

// copyTree copies what the tests need. The copies can be changed.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return errors.WithStack(err)
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return errors.WithStack(err)
		}
		target := filepath.Join(to, relative)
		if entry.IsDir() {
			if relative == "docs" || relative == "CHANGELOG" {
				return filepath.SkipDir
			}
			return errors.WithStack(os.MkdirAll(target, 0o750))
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return errors.WithStack(err)
		}
		return errors.WithStack(os.WriteFile(target, content, 0o600))
	})
}

func appendFile(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return errors.WithStack(err)
	}
	file, err := os.OpenFile(to, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.WithStack(err)
	}
	if _, err := file.Write(content); err != nil {
		_ = file.Close()
		return errors.WithStack(err)
	}
	return errors.WithStack(file.Close())
}

// run changes the import in the suite's tests, and runs them.
func (s suite) run(dir, programs string) error {
	changed, err := s.changeImports(dir)
	if err != nil {
		return err
	}
	fmt.Printf("%s: the import is changed in %d files\n", s.dir, changed)
	args := []string{"test", "-count=1", "-timeout=30m", "-json"}
	for _, d := range differences {
		args = append(args, "-skip="+d.test)
	}
	test := exec.Command("go", append(args, "./"+s.dir)...)
	test.Dir = dir
	test.Stderr = os.Stderr
	test.Env = append(os.Environ(), "KUBEBUILDER_ASSETS="+programs, "GOFLAGS=-mod=mod")
	events, err := test.StdoutPipe()
	if err != nil {
		return errors.WithStack(err)
	}
	if err := test.Start(); err != nil {
		return errors.WithStack(err)
	}
	passed, output := read(bufio.NewScanner(events))
	if err := test.Wait(); err != nil {
		fmt.Print(output)
		return errors.Wrap(err, "go test")
	}
	fmt.Printf("%s: %d tests passed\n", s.dir, passed)
	if passed < s.tests {
		return errors.Errorf("%d tests passed, want at least %d", passed, s.tests)
	}
	return nil
}

// read returns how many tests passed that are no subtests, and the output of what failed.
func read(events *bufio.Scanner) (passed int, output string) {
	events.Buffer(nil, 1<<26)
	texts := map[string]*bytes.Buffer{}
	var failed bytes.Buffer
	for events.Scan() {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(events.Bytes(), &event) != nil {
			continue
		}
		text := texts[event.Test]
		if text == nil {
			text = &bytes.Buffer{}
			texts[event.Test] = text
		}
		switch event.Action {
		case "output", "build-output":
			text.WriteString(event.Output)
		case "pass", "skip":
			if event.Action == "pass" && event.Test != "" && !strings.Contains(event.Test, "/") {
				passed++
			}
			delete(texts, event.Test)
		case "fail", "build-fail":
			failed.Write(text.Bytes())
			delete(texts, event.Test)
		}
	}
	for _, text := range texts { // of a build that failed, or of tests that a panic ended
		failed.Write(text.Bytes())
	}
	return passed, failed.String()
}

// changeImports makes the suite's tests import the adapter, and returns how many files it changed.
func (s suite) changeImports(dir string) (changed int, err error) {
	files, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(s.dir), "*_test.go"))
	if err != nil {
		return 0, errors.WithStack(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return 0, errors.WithStack(err)
		}
		if !bytes.Contains(content, []byte("\t"+theirs+"\n")) {
			continue
		}
		content = bytes.Replace(content, []byte("\t"+theirs+"\n"), fmt.Appendf(nil, "\tclustercache %q\n", adapter), 1)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return 0, errors.WithStack(err)
		}
		changed++
	}
	for _, file := range files { // in whatever form
		content, err := os.ReadFile(file)
		if err != nil {
			return 0, errors.WithStack(err)
		}
		if bytes.Contains(content, []byte(theirs)) {
			return 0, errors.Errorf("%s imports %s in another form", file, theirs)
		}
	}
	if changed == 0 {
		return 0, errors.Errorf("no test in %s imports %s", s.dir, theirs)
	}
	return changed, nil
}

func output(dir, name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Dir, command.Stderr = dir, os.Stderr
	out, err := command.Output()
	return strings.TrimSpace(string(out)), errors.Wrapf(err, "%s %s", name, strings.Join(args, " "))
}
