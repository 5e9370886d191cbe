package architecture

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// deciders are the packages that may decide about a Reason: the machine, the vocabulary, and the
// fake, whose user is the machine.
var deciders = []string{"accessor/internal/lifecycle", "internal/connstate", "fake"}

// exceptions are the functions elsewhere that may name a Reason, or read the clock: why an
// extension that has no machine has no connection; what a condition says about a request without a
// token; and since when a handle fails that sees the end of its lease before the machine does. That
// one may not step, because watches ask it under their locks, and it has the Reason from the
// machine.
var exceptions = []string{"accessor.absentReason", "clustercache.Condition",
	"accessor/internal/connection.closeWithTerm"}

// shown are the types whose times a state shows.
var shown = []string{"internal/connstate.NotConnectedError", "accessor.ConnectionState", "accessor.snapshot",
	"clustercache.ConnectionState", "accessor/internal/lifecycle.Snapshot"}

// Outside of the machine nothing decides why there is no connection, and since when.
func TestOnlyTheMachineDecides(t *testing.T) {
	g := NewWithT(t)
	list := checkedPackages(t, "./...")
	checked := 0
	for _, p := range list {
		if name := strings.TrimPrefix(p.path, module+"/"); p.uses(module+"/internal/connstate") &&
			!slices.Contains(deciders, name) && !strings.HasPrefix(name, "test/") {
			checked++
			g.Expect(p.decisions()).To(BeEmpty())
		}
	}
	g.Expect(checked).To(BeNumerically(">", 5), "these packages use Reasons")
}

// The check finds each way to decide.
func TestDecisionsAreFound(t *testing.T) {
	g := NewWithT(t)
	for code, want := range map[string]string{
		`var a = connstate.ReasonStale`:                                                             "ReasonStale",
		`func f(r connstate.Reason) bool { return r == "Stale" }`:                                   `"Stale"`,
		`func f(r, s connstate.Reason) bool { return r != s }`:                                      "compares",
		`func f(r connstate.Reason) { switch r {} }`:                                                "compares",
		`func f(s string) connstate.Reason { return connstate.Reason(s) }`:                          "converts",
		`func f(e *connstate.NotConnectedError) { e.Since = time.Now() }`:                           "stamps",
		`func f() any { now := time.Now(); return connstate.NotConnectedError{Since: now.Add(1)} }`: "stamps",
		`func f(e *connstate.NotConnectedError) { e.Reason = "" }`:                                  "",
		`func f(r connstate.Reason) bool { return r == "" }`:                                        "",
		`const renamed = connstate.ReasonStale`:                                                     "",
		`func f(e *connstate.NotConnectedError, at time.Time) { e.Since = at }`:                     "",
	} {
		source := "package p\nimport (\"time\"; \"" + module + "/internal/connstate\")\n" +
			"var _ time.Time; var _ connstate.Phase\n" + code
		found := checkSource(t, source).decisions()
		if want == "" {
			g.Expect(found).To(BeEmpty(), code)
		} else {
			g.Expect(found).To(ContainElement(ContainSubstring(want)), code)
		}
	}
}

// checkedPackage is a package with the types of its expressions.
type checkedPackage struct {
	path  string
	files []*ast.File
	set   *token.FileSet
	info  *types.Info
	types *types.Package
}

func (p *checkedPackage) uses(path string) bool {
	return slices.ContainsFunc(p.types.Imports(), func(i *types.Package) bool { return i.Path() == path })
}

// exports returns what go list says about the packages and all that they import.
func exports(t *testing.T, patterns ...string) (packages []exportedPackage, lookup importer.Lookup) {
	t.Helper()
	command := exec.Command("go", append([]string{"list", "-export", "-deps",
		"-json=ImportPath,Dir,GoFiles,Export,DepOnly"}, patterns...)...)
	command.Dir = root
	output, err := command.Output()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	byPath := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var p exportedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		byPath[p.ImportPath] = p.Export
		packages = append(packages, p)
	}
	return packages, func(path string) (io.ReadCloser, error) { return os.Open(byPath[path]) }
}

type exportedPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// checkedPackages returns the packages of this module with their types.
func checkedPackages(t *testing.T, patterns ...string) (list []*checkedPackage) {
	t.Helper()
	packages, lookup := exports(t, patterns...)
	set := token.NewFileSet()
	imports := importer.ForCompiler(set, "gc", lookup)
	for _, p := range packages {
		if p.DepOnly {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		list = append(list, check(t, p.ImportPath, set, imports, files))
	}
	return list
}

// checkSource returns a package with one file.
func checkSource(t *testing.T, source string) *checkedPackage {
	t.Helper()
	_, lookup := exports(t, "./internal/connstate")
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return check(t, module+"/p", set, importer.ForCompiler(set, "gc", lookup), []*ast.File{file})
}

func check(t *testing.T, path string, set *token.FileSet, imports types.Importer, files []*ast.File) *checkedPackage {
	t.Helper()
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	checked, err := (&types.Config{Importer: imports}).Check(path, set, files, info)
	if err != nil {
		t.Fatal(err)
	}
	return &checkedPackage{path: path, files: files, set: set, info: info, types: checked}
}

// decisions returns where the package decides about a Reason, or stamps a time that a state shows.
func (p *checkedPackage) decisions() (found []string) {
	for _, file := range p.files {
		for _, declaration := range file.Decls {
			if d, ok := declaration.(*ast.GenDecl); ok && d.Tok == token.CONST {
				continue // another name for the same
			}
			if f, ok := declaration.(*ast.FuncDecl); ok &&
				slices.Contains(exceptions, strings.TrimPrefix(p.path, module+"/")+"."+f.Name.Name) {
				continue
			}
			found = append(found, p.decisionsIn(declaration)...)
		}
	}
	return found
}

func (p *checkedPackage) decisionsIn(declaration ast.Decl) (found []string) {
	report := func(at ast.Node, format string, arguments ...any) {
		found = append(found, fmt.Sprintf("%s %s", p.set.Position(at.Pos()), fmt.Sprintf(format, arguments...)))
	}
	clock := map[types.Object]bool{} // what was read from the clock
	ast.Inspect(declaration, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if c, ok := p.info.Uses[n].(*types.Const); ok && isReason(c.Type()) {
				report(n, "names %s", n.Name)
			}
		case *ast.BasicLit:
			if isReason(p.info.TypeOf(n)) && n.Value != `""` {
				report(n, "names %s", n.Value)
			}
		case *ast.BinaryExpr:
			if (n.Op == token.EQL || n.Op == token.NEQ) && p.isDecision(n.X) && p.isDecision(n.Y) {
				report(n, "compares Reasons")
			}
		case *ast.SwitchStmt:
			if n.Tag != nil && isReason(p.info.TypeOf(n.Tag)) {
				report(n, "compares Reasons")
			}
		case *ast.CallExpr:
			if p.info.Types[n.Fun].IsType() && isReason(p.info.TypeOf(n.Fun)) {
				report(n, "converts to a Reason")
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				right := n.Rhs[min(i, len(n.Rhs)-1)]
				if name, ok := left.(*ast.Ident); ok && p.readsClock(right, clock) {
					clock[p.info.ObjectOf(name)] = true
				}
				if field, ok := left.(*ast.SelectorExpr); ok && isShown(p.info.TypeOf(field.X)) &&
					isTime(p.info.TypeOf(left)) && p.readsClock(right, clock) {
					report(n, "stamps a time that a state shows")
				}
			}
		case *ast.CompositeLit:
			if !isShown(p.info.TypeOf(n)) {
				return true
			}
			for _, element := range n.Elts {
				if value, ok := element.(*ast.KeyValueExpr); ok && isTime(p.info.TypeOf(value.Value)) &&
					p.readsClock(value.Value, clock) {
					report(element, "stamps a time that a state shows")
				}
			}
		}
		return true
	})
	return found
}

// isDecision reports whether the expression is a Reason, and not the constant "".
func (p *checkedPackage) isDecision(e ast.Expr) bool {
	t := p.info.Types[e]
	return isReason(t.Type) && (t.Value == nil || constant.StringVal(t.Value) != "")
}

// readsClock reports whether the value comes from the clock; known are variables whose values do.
func (p *checkedPackage) readsClock(e ast.Expr, known map[types.Object]bool) (reads bool) {
	if !isTime(p.info.TypeOf(e)) {
		return false
	}
	ast.Inspect(e, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok {
			object := p.info.Uses[name]
			function, isFunction := object.(*types.Func)
			reads = reads || known[object] || isFunction && function.FullName() == "time.Now"
		}
		return true
	})
	return reads
}

func isReason(t types.Type) bool { return isNamed(t, "internal/connstate.Reason") }

func isShown(t types.Type) bool {
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	return slices.ContainsFunc(shown, func(name string) bool { return isNamed(t, name) })
}

func isTime(t types.Type) bool {
	return t != nil && types.Unalias(t).String() == "time.Time"
}

func isNamed(t types.Type, name string) bool {
	return t != nil && types.Unalias(t).String() == module+"/"+name
}
