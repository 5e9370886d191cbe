// Command conformance runs controller-runtime's own tests of its cache against scopedcache.New. Run
// the command from the root of the repository, or run "make conformance".
//
// The command copies the tests of the version in go.mod from the module cache into a temporary
// module. The command replaces cache.New by scopedcache.New there, and runs the tests. Then the
// command removes the module.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/latchkey-dev/latchkey/internal/controlplane/assets"
)

const (
	controllerRuntime = "sigs.k8s.io/controller-runtime"
	ginkgo            = "github.com/onsi/ginkgo/v2"
)

// difference is a test that fails by design. The doc.go of package scopedcache explains each
// difference.
type difference struct {
	test   string // a regular expression
	ginkgo bool   // whether test matches the text of specs instead of names of tests
	reason string
}

var differences = []difference{
	{test: "^TestReaderWaitsForCacheSync$", reason: "the test has no API server for access reviews"},
}

// ready makes each copied spec wait for an object that some specs read first. A kube-apiserver
// creates this object just after it reports ready. Without this wait, the first spec fails now and
// then.
const ready = `package cache_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var _ = BeforeEach(func(ctx SpecContext) {
	Eventually(func() error {
		_, err := clientset.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		return err
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
})
`

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	programs, err := assets.Find()
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	theirs, err := output(root, "go", "list", "-m", "-f", "{{.Dir}}", controllerRuntime)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "latchkey-conformance-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeModule(dir, root, theirs); err != nil {
		return err
	}
	count, err := copyTests(filepath.Join(theirs, "pkg", "cache"), dir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "ready_test.go"), []byte(ready), 0o600); err != nil {
		return err
	}
	fmt.Printf("Running %d files of tests from %s against scopedcache.New\n", count, filepath.Base(theirs))
	var skip, skipSpecs []string
	for _, d := range differences {
		fmt.Printf("Not run: %s: %s\n", d.test, d.reason)
		if d.ginkgo {
			skipSpecs = append(skipSpecs, "--ginkgo.skip="+d.test)
		} else {
			skip = append(skip, d.test)
		}
	}
	args := []string{"test", "-count=1", "-timeout=30m", "-v", "-skip=" + strings.Join(skip, "|"), "."}
	test := exec.Command("go", append(append(args, "--ginkgo.succinct"), skipSpecs...)...)
	test.Dir, test.Stdout, test.Stderr = dir, os.Stdout, os.Stderr
	test.Env = append(os.Environ(), "KUBEBUILDER_ASSETS="+programs, "GOFLAGS=-mod=mod")
	return test.Run()
}

// writeModule turns dir into a module that uses this repository's code and versions, and
// controller-runtime's version of the test framework.
func writeModule(dir, root, theirs string) error {
	module, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return err
	}
	ours, err := output(root, "go", "list", "-m")
	if err != nil {
		return err
	}
	version := ginkgoVersion(theirs)
	if version == "" {
		return fmt.Errorf("the go.mod of controller-runtime does not name %s", ginkgo)
	}
	module = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(module, []byte("module conformance"))
	module = fmt.Appendf(module, "\nrequire %s v0.0.0\nreplace %s => %s\nrequire %s %s\n", ours, ours, root, ginkgo,
		version)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), module, 0o600); err != nil {
		return err
	}
	var sums []byte
	for _, from := range []string{root, theirs} {
		sum, err := os.ReadFile(filepath.Join(from, "go.sum"))
		if err != nil {
			return err
		}
		sums = append(sums, sum...)
	}
	return os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600)
}

func ginkgoVersion(theirs string) string {
	module, err := os.ReadFile(filepath.Join(theirs, "go.mod"))
	if err != nil {
		return ""
	}
	found := regexp.MustCompile(regexp.QuoteMeta(ginkgo) + ` (v\S+)`).FindSubmatch(module)
	if found == nil {
		return ""
	}
	return string(found[1])
}

// copyTests copies the tests of package cache_test, with scopedcache.New instead of cache.New.
func copyTests(from, to string) (count int, err error) {
	files, err := filepath.Glob(filepath.Join(from, "*_test.go"))
	if err != nil {
		return 0, err
	}
	constructor, replaced := regexp.MustCompile(`\bcache\.New\b`), 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return count, err
		}
		if !bytes.Contains(source, []byte("\npackage cache_test\n")) {
			continue // a test inside package cache
		}
		if constructor.Match(source) {
			replaced++
			source = constructor.ReplaceAll(source, []byte("scopedcache.New"))
			source = bytes.Replace(source, []byte("import (\n"),
				[]byte("import (\n\t\"github.com/latchkey-dev/latchkey/scopedcache\"\n"), 1)
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), source, 0o600); err != nil {
			return count, err
		}
		count++
	}
	if count == 0 || replaced == 0 {
		return 0, fmt.Errorf("found no tests of cache.New in %s", from)
	}
	return count, nil
}

func output(dir, name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Dir, command.Stderr = dir, os.Stderr
	out, err := command.Output()
	return strings.TrimSpace(string(out)), err
}
