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

// deciders are the packages that may decide about a Reason: the machine, the vocabulary, the fake,
// whose user is the machine, and the demo, which expects one of each.
var deciders = []string{"accessor/internal/lifecycle", "internal/connstate", "fake", "cmd/latchkey/demo"}

// exceptions are the functions elsewhere that may name a Reason or read the clock. absentReason
// says why an extension that has no machine has no connection. Condition says what a condition
// shows of a request without a token. closeWithTerm reads the clock because a caller can see the
// end of the lease before the machine does, and must not step the machine: watches call it under
// their locks. stateOf reads what the machine of another replica has decided.
var exceptions = []string{"accessor.absentReason", "clustercache.Condition",
	"accessor/internal/connection.closeWithTerm", "statuspage.stateOf"}

// shown are the types whose times a state shows.
var shown = []string{"internal/connstate.NotConnectedError", "accessor.State", "accessor.snapshot",
	"clustercache.ConnectionState", "accessor/internal/lifecycle.Snapshot"}

// Outside of the machine nothing decides why there is no connection, and since when.
func TestOnlyTheMachineDecides(t *testing.T) {
	g := NewWithT(t)
	known := map[string]bool{}
	for _, p := range checkedPackages(t, "./...") {
		name := strings.TrimPrefix(p.path, module+"/")
		for _, declared := range p.types.Scope().Names() {
			known[name+"."+declared] = true
		}
		known[name] = true
		if !slices.Contains(deciders, name) && !strings.HasPrefix(name, "test/") {
			found, excepted := p.decisions()
			g.Expect(found).To(BeEmpty())
			for _, function := range excepted {
				known[function+" decides"] = true
			}
		}
	}
	for _, name := range slices.Concat(deciders, shown) {
		g.Expect(known).To(HaveKey(name), "a rule names what is gone")
	}
	for _, name := range exceptions {
		g.Expect(known).To(HaveKey(name+" decides"), "an exception that is not needed")
	}
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
		`func f(r connstate.Reason) bool { return string(r) == "Stale" }`:                           "compares",
		`func f(e *connstate.NotConnectedError) { var now = time.Now(); e.Since = now }`:            "stamps",
		`func f(e *connstate.NotConnectedError) { e.Reason = "" }`:                                  "",
		`func f(r connstate.Reason) bool { return r == "" }`:                                        "",
		`const renamed = connstate.ReasonStale`:                                                     "",
		`func f(e *connstate.NotConnectedError, at time.Time) { e.Since = at }`:                     "",
	} {
		source := "package p\nimport (\"time\"; \"" + module + "/internal/connstate\")\n" +
			"var _ time.Time; var _ connstate.Phase\n" + code
		found, _ := checkSource(t, source).decisions()
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
	info := &types.Info{
		Types:      map[ast.Expr]types.TypeAndValue{},
		Uses:       map[*ast.Ident]types.Object{},
		Defs:       map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	checked, err := (&types.Config{Importer: imports}).Check(path, set, files, info)
	if err != nil {
		t.Fatal(err)
	}
	return &checkedPackage{path: path, files: files, set: set, info: info, types: checked}
}

// decisions returns where the package decides about a Reason, or stamps a time that a state shows,
// and which exceptions do.
func (p *checkedPackage) decisions() (found, excepted []string) {
	for _, file := range p.files {
		for _, declaration := range file.Decls {
			if d, ok := declaration.(*ast.GenDecl); ok && d.Tok == token.CONST {
				continue // another name for the same
			}
			decisions := p.decisionsIn(declaration)
			if f, ok := declaration.(*ast.FuncDecl); ok && len(decisions) > 0 {
				name := strings.TrimPrefix(p.path, module+"/") + "." + f.Name.Name
				if slices.Contains(exceptions, name) {
					excepted = append(excepted, name)
					continue
				}
			}
			found = append(found, decisions...)
		}
	}
	return found, excepted
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
			if compares := n.Op == token.EQL || n.Op == token.NEQ; compares &&
				(p.isDecision(n.X) && p.isDecision(n.Y) || p.isText(n.X) || p.isText(n.Y)) {
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
		case *ast.ValueSpec:
			for i, value := range n.Values {
				if p.readsClock(value, clock) {
					clock[p.info.ObjectOf(n.Names[min(i, len(n.Names)-1)])] = true
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

// isText reports whether the expression is the text of a Reason.
func (p *checkedPackage) isText(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && len(call.Args) == 1 && p.info.Types[call.Fun].IsType() && isReason(p.info.TypeOf(call.Args[0]))
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
