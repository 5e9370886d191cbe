package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/advice"
	"github.com/latchkey-dev/latchkey/internal/degraded"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

const module = "github.com/latchkey-dev/latchkey"

// root is the folder of the repository, seen from this package.
const root = "../../.."

// floors are the packages of this module as docs/architecture.md lists them: floor by floor, the
// floors and the packages of each in the order of the page.
type floors [][]string

// readFloors returns what the tables of docs/architecture.md say: the floors, and the folders of
// the other modules.
func readFloors(t *testing.T) (list floors, modules []string) {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/architecture.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, section, _ := strings.Cut(string(page), "\n## Packages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	for _, part := range strings.Split(section, "\n### ")[1:] {
		var names []string
		for _, match := range row.FindAllStringSubmatch(part, -1) {
			names = append(names, match[1])
		}
		if heading, _, _ := strings.Cut(part, "\n"); heading == "Modules of their own" {
			modules = names
		} else {
			list = append(list, names)
		}
	}
	return list, modules
}

// place is where a package stands: its floor, and its row among all packages.
type place struct{ floor, row int }

// places returns the place of each package, and the packages that are listed twice.
func (f floors) places() (found map[string]place, twice []string) {
	found = map[string]place{}
	for floor, names := range f {
		for _, name := range names {
			if _, known := found[name]; known {
				twice = append(twice, name)
			}
			found[name] = place{floor, len(found)}
		}
	}
	return found, twice
}

// violations returns what is wrong with packages that stand on floors.
func (f floors) violations(list []goPackage) (found []string) {
	places, twice := f.places()
	for _, name := range twice {
		found = append(found, name+" is listed twice")
	}
	here := map[string]bool{}
	for _, p := range list {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		here[name] = true
		from, known := places[name]
		if !known {
			found = append(found, name+" is not listed")
			continue
		}
		if why := badPlace(name, p.Name == "main"); why != "" {
			found = append(found, name+" "+why)
		}
		for _, imported := range p.Imports {
			ours, ok := strings.CutPrefix(imported, module+"/")
			if !ok {
				continue
			}
			to, known := places[ours]
			if known && (to.floor < from.floor || to.floor == from.floor && room(ours) != room(name)) {
				found = append(found, name+" imports "+ours+", which is on no lower floor")
			} else if known && to.row < from.row {
				found = append(found, name+" imports "+ours+", which is listed above it")
			}
		}
	}
	for name := range places {
		if !here[name] {
			found = append(found, name+" does not exist")
		}
	}
	return found
}

// room returns the top folder of a package.
func room(name string) string {
	first, _, _ := strings.Cut(name, "/")
	return first
}

// badPlace returns what is wrong with the folder of a package, "" if nothing is: programs are not
// in a library's folder, and the repository's own are in hack, where nothing else is.
func badPlace(name string, program bool) string {
	switch room(name) {
	case "hack":
		if !program {
			return "is no program, and in hack"
		}
	case "cmd", "examples", "test":
	default:
		if program {
			return "is a program, and among libraries"
		}
	}
	return ""
}

type goPackage struct {
	ImportPath, Name, Dir string
	Imports               []string
}

func packages(t *testing.T) (list []goPackage) {
	t.Helper()
	g := NewWithT(t)
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,Imports", module+"/...")
	cmd.Dir = root
	out, err := cmd.Output()
	g.Expect(err).NotTo(HaveOccurred())
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else {
			g.Expect(err).NotTo(HaveOccurred())
		}
		list = append(list, p)
	}
}

func TestImportsRunDown(t *testing.T) {
	g := NewWithT(t)
	list := packages(t)
	floors, _ := readFloors(t)
	g.Expect(floors).To(HaveLen(9), "the tables are found")
	g.Expect(floors.violations(list)).To(BeEmpty())
}

// The modules that docs/architecture.md lists are those that exist.
func TestModulesAreListed(t *testing.T) {
	g := NewWithT(t)
	_, listed := readFloors(t)
	out, err := exec.Command("git", "-C", root, "ls-files", "*/go.mod").Output()
	g.Expect(err).NotTo(HaveOccurred())
	var want []string
	for _, file := range strings.Fields(string(out)) {
		want = append(want, path.Dir(file))
	}
	g.Expect(listed).To(ConsistOf(want))
}

func TestImportsRunDownFinds(t *testing.T) {
	ours := func(name, pkg string, imports ...string) goPackage {
		for i := range imports {
			imports[i] = module + "/" + imports[i]
		}
		return goPackage{ImportPath: module + "/" + name, Name: pkg, Imports: append(imports, "fmt")}
	}
	plan := floors{{"test/a", "hack/b"}, {"top/inner", "top", "side"}, {"internal/x", "internal/y"}}
	for _, test := range []struct {
		name  string
		plan  floors
		found goPackage
		want  string
	}{
		{"all is well", plan, ours("top/inner", "inner", "top", "internal/y"), ""},
		{"up a floor", plan, ours("internal/x", "x", "top"), "internal/x imports top, which is on no lower floor"},
		{"aside", plan, ours("top", "top", "side"), "top imports side, which is on no lower floor"},
		{"up within a room", plan, ours("top", "top", "top/inner"), "top imports top/inner, which is listed above it"},
		{"unlisted", plan, ours("util", "util"), "util is not listed"},
		{"a library in hack", plan, ours("hack/b", "b"), "hack/b is no program, and in hack"},
		{"a program among libraries", plan, ours("internal/y", "main"), "internal/y is a program, and among libraries"},
		{"listed twice", append(floors{{"side"}}, plan...), ours("top", "top"), "side is listed twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			var list []goPackage
			places, _ := test.plan.places()
			for name := range places {
				if pkg := ours(name, "x"); room(name) == "hack" {
					list = append(list, ours(name, "main"))
				} else {
					list = append(list, pkg)
				}
			}
			list = slices.DeleteFunc(list, func(p goPackage) bool { return p.ImportPath == test.found.ImportPath })
			found := test.plan.violations(append(list, test.found))
			if test.want == "" {
				g.Expect(found).To(BeEmpty())
				return
			}
			g.Expect(found).To(ConsistOf(test.want))
			g.Expect(test.plan.violations(append(list, test.found)[1:])).To(
				ContainElement(HaveSuffix(" does not exist")), "a row without a package")
		})
	}
}

// serverLibrary is the library of API servers, and withServers are the packages that may reach it.
// A host operator imports none of them.
const serverLibrary = "k8s.io/apiserver"

var withServers = []string{"cmd/latchkey", "stateapi", "examples/extensionapi", "test/e2e/stateapi",
	"test/support/deployment"}

// serverUsers returns the packages, of those that import each other as deps says, that reach the
// server library and may not.
func serverUsers(deps map[string][]string) (found []string) {
	for name, imported := range deps {
		own := strings.TrimPrefix(name, module+"/")
		if name == own || slices.ContainsFunc(withServers, func(prefix string) bool {
			return own == prefix || strings.HasPrefix(own, prefix+"/")
		}) {
			continue
		}
		if slices.ContainsFunc(imported, func(path string) bool { return strings.HasPrefix(path, serverLibrary+"/") }) {
			found = append(found, own)
		}
	}
	return found
}

func TestServerLibraryStaysOut(t *testing.T) {
	g := NewWithT(t)
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Deps \" \"}}", module+"/...")
	cmd.Dir = root
	out, err := cmd.Output()
	g.Expect(err).NotTo(HaveOccurred())
	deps := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		deps[words[0]] = words[1:]
	}
	g.Expect(deps[module+"/stateapi/apiserver"]).To(ContainElement(serverLibrary+"/pkg/server"), "the list is right")
	g.Expect(serverUsers(deps)).To(BeEmpty(), "a host operator would compile the library of API servers")
	deps[module+"/clustercache"] = deps[module+"/stateapi/apiserver"]
	g.Expect(serverUsers(deps)).To(ConsistOf("clustercache"), "the check detects a violation")
}

// pure lists the packages that only decide. impure and impureUse list the imports and calls that
// would make their decisions depend on more than their input.
var (
	pure      = []string{"accessor/internal/lifecycle", "scopedcache/internal/monitor"}
	impure    = []string{"sync", "context", "net", "math/rand", "os", "k8s.io/klog", "k8s.io/client-go"}
	impureUse = regexp.MustCompile(
		`\btime\.(Now|Since|Until|After|AfterFunc|Sleep|Tick|NewTimer|NewTicker)\b|\bwait\.(Jitter|Poll)|\bgo func\b|<-`)
)

func impureImports(list []goPackage) (found []string) {
	for _, p := range list {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if !slices.Contains(pure, name) {
			continue
		}
		for _, imported := range p.Imports {
			for _, prefix := range impure {
				if imported == prefix || strings.HasPrefix(imported, prefix+"/") {
					found = append(found, name+" imports "+imported)
				}
			}
		}
	}
	return found
}

func TestPurePackages(t *testing.T) {
	g := NewWithT(t)
	list := packages(t)
	g.Expect(impureImports(list)).To(BeEmpty())
	impureOne := append(list,
		goPackage{ImportPath: module + "/" + pure[0], Imports: []string{"sync/atomic", "time", "net/http", "network"}})
	g.Expect(impureImports(impureOne)).To(HaveLen(2), "the check detects a violation")
	found := 0
	for _, p := range list {
		if !slices.Contains(pure, strings.TrimPrefix(p.ImportPath, module+"/")) {
			continue
		}
		found++
		files, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			code, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			if !strings.HasSuffix(file, "_test.go") {
				g.Expect(impureUse.FindString(string(code))).To(BeEmpty(), file)
			}
		}
	}
	g.Expect(found).To(Equal(len(pure)))
	g.Expect(impureUse.MatchString("at := time.Now()")).To(BeTrue(), "the check detects a violation")
}

// isPublic reports whether users import the package.
func isPublic(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return !slices.Contains([]string{"accessor", "test", "examples", "hack"}, first) &&
		!slices.Contains(strings.Split(name, "/"), "internal")
}

func TestEveryPackageHasItsDoc(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if p.Name == "main" {
			continue // a command documents itself with -h
		}
		content, err := os.ReadFile(filepath.Join(p.Dir, "doc.go"))
		if err != nil {
			t.Errorf("%s has no doc.go", name)
			continue
		}
		if !isPublic(name) {
			continue
		}
		for _, section := range []string{"// # Setup\n", "// # Usage\n", "// # Considerations\n"} {
			if !strings.Contains(string(content), section) {
				t.Errorf("%s: doc.go has no %q", name, strings.TrimSpace(section))
			}
		}
	}
}

// The page for the people on call explains every reason, and no other.
func TestOperationsPageListsEveryReason(t *testing.T) {
	g := NewWithT(t)
	code, err := os.ReadFile(root + "/internal/connstate/state.go")
	g.Expect(err).NotTo(HaveOccurred())
	page, err := os.ReadFile(root + "/docs/operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	first := func(matches [][]string) (list []string) {
		for _, match := range matches {
			list = append(list, match[1])
		}
		return list
	}
	_, table, _ := strings.Cut(string(page), "## Reasons")
	table, _, _ = strings.Cut(table, "## Metrics")
	table, degradedTable, _ := strings.Cut(table, "### Degraded")
	degradedTable, fleetTable, _ := strings.Cut(degradedTable, "### Of a fleet")
	g.Expect(first(regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(fleetTable, -1))).
		To(Equal([]string{v1alpha1.ReasonNoReplica, v1alpha1.ReasonReplicaSilent}))
	var degradedReasons []string
	for _, reason := range degraded.Reasons {
		degradedReasons = append(degradedReasons, string(reason))
	}
	g.Expect(first(regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(degradedTable, -1))).
		To(Equal(degradedReasons), "the worst first")
	for _, reason := range degradedReasons {
		g.Expect(advice.For(reason)).NotTo(BeEmpty(), reason)
	}
	reasons := first(regexp.MustCompile(`Reason = "([A-Za-z]+)"`).FindAllStringSubmatch(string(code), -1))
	g.Expect(reasons).NotTo(BeEmpty())
	g.Expect(first(regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(table, -1))).To(Equal(reasons))
	names := first(regexp.MustCompile(`(?m)^\t([A-Za-z]+) +Reason = "`).FindAllStringSubmatch(string(code), -1))
	g.Expect(names).To(HaveLen(len(reasons)))
	rows := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| .* \\| (.*) \\|$").FindAllStringSubmatch(table, -1)
	g.Expect(rows).To(HaveLen(len(reasons)), "rows end with a bar")
	for _, row := range rows {
		g.Expect(advice.For(row[1])).To(Equal(strings.ReplaceAll(row[2], "`", "")), "what kubectl latchkey why says")
	}
	public, err := os.ReadFile(root + "/clustercache/state.go")
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range names {
		g.Expect(string(public)).To(MatchRegexp(`(?m)^\t` + name + ` += connstate\.` + name + `\b`))
	}
}

// The overview links every design record, and every test that the pages name exists.
func TestDesignRecords(t *testing.T) {
	g := NewWithT(t)
	overview, err := os.ReadFile(root + "/docs/architecture.md")
	g.Expect(err).NotTo(HaveOccurred())
	records, err := filepath.Glob(root + "/docs/designs/*.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(records).NotTo(BeEmpty())
	pages := string(overview)
	for _, record := range records {
		g.Expect(string(overview)).To(ContainSubstring("(designs/" + filepath.Base(record) + ")"))
		content, err := os.ReadFile(record)
		g.Expect(err).NotTo(HaveOccurred())
		for _, heading := range []string{"## Context\n", "## Decision\n", "## Cost\n"} {
			g.Expect(string(content)).To(ContainSubstring(heading), record)
		}
		pages += string(content)
	}
	out, err := exec.Command("git", "-C", root, "grep", "-hoE", `^func (Test|Fuzz|Benchmark)\w+\(`).Output()
	g.Expect(err).NotTo(HaveOccurred())
	for _, named := range regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Za-z0-9]+)`").FindAllStringSubmatch(pages, -1) {
		g.Expect(string(out)).To(ContainSubstring("func "+named[1]+"("), "a page names a test that does not exist")
	}
}
