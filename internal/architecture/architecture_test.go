package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/advice"
)

const module = "github.com/latchkey-dev/latchkey"

// mayImport has the arrows: for each package of this module, the packages of this module that it
// may import. No other package may exist.
var mayImport = map[string][]string{
	"cmd/latchkey": {"cmd/latchkey/demo", "clustercache", "config", "credential", "scopedcache",
		"healthprobe", "stateapi", "statuspage", "fence", "ownership",
		"ownership/buckets", "ownership/controllersharding", "internal/identity", "internal/untrusted"},
	"cmd/kubectl-latchkey": {"internal/advice", "internal/untrusted", "stateapi/v1alpha1"},
	"internal/advice":      {},
	"cmd/latchkey/demo": {"clustercache", "healthprobe", "config", "examples/contentoperator", "internal/controlplane",
		"stateapi", "stateapi/extension", "statuspage"},

	"examples/contentoperator":                     {"clustercache"},
	"examples/fluxlike":                            {"clustercache", "credential"},
	"examples/scopedonly":                          {"scopedcache"},
	"examples/fluxlike/cmd/fluxlike":               {"examples/fluxlike", "scopedcache"},
	"examples/contentoperator/cmd/contentoperator": {"clustercache", "scopedcache", "examples/contentoperator"},

	"examples/serviceprovider/config":   {},
	"examples/serviceprovider/v1alpha1": {},
	"examples/serviceprovider/mailbox": {"serviceprovider", "serviceprovider/clustersv1alpha1", "clustercache",
		"examples/serviceprovider/v1alpha1"},
	"examples/serviceprovider/cmd/mailbox": {"examples/serviceprovider/mailbox", "examples/serviceprovider/v1alpha1",
		"scopedcache"},
	"examples/serviceprovider/cmd/demo": {"examples/serviceprovider/config", "examples/serviceprovider/mailbox",
		"examples/serviceprovider/v1alpha1", "serviceprovider/clustersv1alpha1", "internal/controlplane",
		"internal/platformactor"},

	"examples/extensionapi":          {"examples/extensionapi/v1alpha1", "stateapi/extension"},
	"examples/extensionapi/v1alpha1": {},
	"stateapi": {"clustercache", "stateapi/extension", "stateapi/internal/aggregation",
		"stateapi/v1alpha1", "internal/connstate"},
	"statuspage":                    {"clustercache", "internal/advice", "internal/connstate", "internal/strangers"},
	"stateapi/internal/aggregation": {"internal/certs"},
	"stateapi/v1alpha1":             {},
	"stateapi/extension":            {"internal/strangers"},

	"serviceprovider": {"serviceprovider/clustersv1alpha1", "clustercache", "credential", "scopedcache",
		"internal/untrusted", "internal/objectlist"},
	"serviceprovider/clustersv1alpha1": {},

	"fake": {"clustercache", "scopedcache", "internal/connstate", "internal/watches", "internal/extensionsource",
		"internal/statechanges", "internal/replay", "internal/objectlist"},
	"clustercache": {"accessor", "credential", "scopedcache", "internal/watches", "healthprobe",
		"internal/extensionsource", "internal/informed", "internal/objectlist", "internal/metrics",
		"internal/connstate", "internal/identity", "internal/statechanges", "internal/untrusted",
		"internal/tracing", "fence", "ownership"},
	"ownership":                    {"ownership/internal/holding", "fence"},
	"ownership/buckets":            {"ownership", "ownership/internal/holding", "fence"},
	"ownership/controllersharding": {"ownership", "ownership/internal/holding", "fence"},
	"ownership/internal/holding":   {"fence"},
	"accessor": {
		"credential", "accessor/internal/connection", "accessor/internal/lifecycle", "accessor/internal/targets",
		"accessor/internal/workpool", "scopedcache", "internal/watches", "healthprobe", "internal/untrusted",
		"internal/connstate", "internal/identity", "internal/metrics", "internal/statechanges", "internal/tracing",
		"fence",
	},
	"accessor/internal/connection": {
		"accessor/internal/targets", "accessor/internal/workpool", "scopedcache", "internal/watches",
		"internal/connstate", "internal/identity", "internal/replay", "fence",
	},
	"accessor/internal/targets":   {"internal/untrusted", "internal/connstate", "scopedcache", "fence"},
	"accessor/internal/workpool":  {"internal/connstate"},
	"accessor/internal/lifecycle": {"internal/connstate"},
	"internal/watches": {"scopedcache", "internal/connstate", "internal/latch", "internal/replay",
		"internal/metrics"},
	"internal/identity": {"internal/connstate"},
	"credential": {"internal/identity", "internal/connstate", "internal/untrusted", "internal/informed",
		"internal/metrics", "internal/tracing"},
	"scopedcache": {
		"scopedcache/internal/monitor", "scopedcache/internal/access", "scopedcache/internal/listwatch",
		"scopedcache/internal/lightinformer", "scopedcache/internal/objectpool",
		"scopedcache/internal/rbacindex", "internal/latch", "internal/untrusted", "internal/replay", "internal/metrics",
		"internal/tracing",
	},
	"scopedcache/internal/monitor":   {},
	"scopedcache/internal/access":    {"scopedcache/internal/monitor", "internal/untrusted"},
	"scopedcache/internal/listwatch": {"scopedcache/internal/monitor", "scopedcache/internal/deepcall"},
	"scopedcache/internal/lightinformer": {"scopedcache/internal/objectpool", "scopedcache/internal/deepcall",
		"internal/latch"},
	"scopedcache/internal/deepcall":   {},
	"scopedcache/internal/objectpool": {},
	"scopedcache/internal/rbacindex":  {},
	"healthprobe":                     {"internal/connstate", "internal/untrusted"},

	"fence":                        {},
	"config":                       {},
	"internal/untrusted":           {},
	"internal/connstate":           {"internal/untrusted"},
	"internal/latch":               {},
	"internal/informed":            {},
	"internal/architecture":        {},
	"internal/conformance":         {"internal/controlplane/assets"},
	"internal/extensionsource":     {"internal/metrics"},
	"internal/statechanges":        {},
	"internal/replay":              {"internal/latch"},
	"internal/metrics":             {},
	"internal/tracing":             {},
	"internal/reference":           {"internal/advice", "internal/metrics"},
	"internal/mutants":             {},
	"internal/statediagram":        {},
	"internal/terminalpicture":     {},
	"internal/dashboard":           {},
	"internal/objectlist":          {},
	"internal/contract":            {"clustercache"},
	"internal/certs":               {},
	"internal/strangers":           {},
	"internal/controlplane":        {"internal/controlplane/assets", "internal/certs"},
	"internal/controlplane/assets": {},
	"internal/controlplane/ensure": {"internal/controlplane/assets"},
	"internal/platformactor":       {"serviceprovider/clustersv1alpha1"},
	"test/e2e":                     {},
	"test/e2e/serviceprovider":     {},
	"test/e2e/scopedcache":         {},
	"test/e2e/stateapi":            {},
	"test/e2e/deploy":              {},
	"test/e2e/replicas":            {},
	"internal/machinetest":         {},
	"internal/testutil":            {"fence"},
	"internal/testenv":             {"internal/controlplane"},
	"internal/deployment":          {"internal/controlplane", "internal/testutil"},
}

type goPackage struct {
	ImportPath, Name, Dir string
	Imports               []string
}

func packages(t *testing.T) (list []goPackage) {
	t.Helper()
	g := NewWithT(t)
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,Imports", module+"/...")
	cmd.Dir = "../.."
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

// violations returns the imports that are not in mayImport.
func violations(list []goPackage) (found []string) {
	for _, p := range list {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		allowed, known := mayImport[name]
		if !known {
			found = append(found, name+" is not in the layers")
		}
		for _, imported := range p.Imports {
			if ours, ok := strings.CutPrefix(imported, module+"/"); ok && !slices.Contains(allowed, ours) {
				found = append(found, name+" imports "+ours)
			}
		}
	}
	return found
}

func TestNothingImportsUpwards(t *testing.T) {
	g := NewWithT(t)
	list := packages(t)
	g.Expect(violations(list)).To(BeEmpty())
	g.Expect(list).To(HaveLen(len(mayImport)), "the layers name existing packages only")

	upwards := append(list, goPackage{ImportPath: module + "/healthprobe", Imports: []string{module + "/clustercache"}},
		goPackage{ImportPath: module + "/util"})
	g.Expect(violations(upwards)).To(ConsistOf("healthprobe imports clustercache", "util is not in the layers"),
		"the check detects a violation")
}

// serverLibrary is the library of API servers, and withServers are the packages that may reach it.
// A host operator imports none of them.
const serverLibrary = "k8s.io/apiserver"

var withServers = []string{"cmd/latchkey", "stateapi", "examples/extensionapi", "test/e2e/stateapi",
	"internal/deployment"}

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
	cmd.Dir = "../.."
	out, err := cmd.Output()
	g.Expect(err).NotTo(HaveOccurred())
	deps := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		deps[words[0]] = words[1:]
	}
	g.Expect(deps[module+"/stateapi/extension"]).To(ContainElement(serverLibrary+"/pkg/server"), "the list is right")
	g.Expect(serverUsers(deps)).To(BeEmpty(), "a host operator would compile the library of API servers")
	deps[module+"/clustercache"] = deps[module+"/stateapi/extension"]
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
	return !slices.Contains([]string{"accessor", "test", "examples"}, first) &&
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

// The page that explains the code names every package.
func TestArchitecturePageNamesEveryPackage(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/architecture.md")
	g.Expect(err).NotTo(HaveOccurred())
	for name := range mayImport {
		g.Expect(string(page)).To(ContainSubstring("`" + name + "`"))
	}
}

// The page for the people on call explains every reason, and no other.
func TestOperationsPageListsEveryReason(t *testing.T) {
	g := NewWithT(t)
	code, err := os.ReadFile("../../internal/connstate/state.go")
	g.Expect(err).NotTo(HaveOccurred())
	page, err := os.ReadFile("../../docs/operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	first := func(matches [][]string) (list []string) {
		for _, match := range matches {
			list = append(list, match[1])
		}
		return list
	}
	_, table, _ := strings.Cut(string(page), "## Reasons")
	table, _, _ = strings.Cut(table, "## Metrics")
	reasons := first(regexp.MustCompile(`Reason = "([A-Za-z]+)"`).FindAllStringSubmatch(string(code), -1))
	g.Expect(reasons).NotTo(BeEmpty())
	g.Expect(first(regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(table, -1))).To(Equal(reasons))
	names := first(regexp.MustCompile(`(?m)^\t([A-Za-z]+) +Reason = "`).FindAllStringSubmatch(string(code), -1))
	g.Expect(names).To(HaveLen(len(reasons)))
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| .* \\| (.*) \\|$").FindAllStringSubmatch(table, -1) {
		g.Expect(advice.For(row[1])).To(Equal(strings.ReplaceAll(row[2], "`", "")), "what kubectl latchkey why says")
	}
	public, err := os.ReadFile("../../clustercache/state.go")
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range names {
		g.Expect(string(public)).To(MatchRegexp(`(?m)^\t` + name + ` += connstate\.` + name + `\b`))
	}
}

// The overview links every design record, and every test that the pages name exists.
func TestDesignRecords(t *testing.T) {
	g := NewWithT(t)
	overview, err := os.ReadFile("../../docs/architecture.md")
	g.Expect(err).NotTo(HaveOccurred())
	records, err := filepath.Glob("../../docs/designs/*.md")
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
	out, err := exec.Command("git", "-C", "../..", "grep", "-hoE", `^func (Test|Fuzz|Benchmark)\w+\(`).Output()
	g.Expect(err).NotTo(HaveOccurred())
	for _, named := range regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Za-z0-9]+)`").FindAllStringSubmatch(pages, -1) {
		g.Expect(string(out)).To(ContainSubstring("func "+named[1]+"("), "a page names a test that does not exist")
	}
}
