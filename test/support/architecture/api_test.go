package architecture

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// public lists the packages that users import. Their exported names are what a version promises.
var public = []string{"clustercache", "credential", "scopedcache", "healthprobe", "fake", "config",
	"stateapi", "stateapi/v1alpha1", "stateapi/apiserver", "serviceprovider", "statuspage",
	"serviceprovider/clustersv1alpha1"}

// travelling lists the structs of internal packages that public packages give a name with an alias.
// They travel in errors, which errors.As must find, so all packages need one type. The comment of
// the alias lists the fields, because pkg.go.dev shows none.
var travelling = map[string]bool{"clustercache.NotConnectedError": true}

// sealing lists the methods that name internal types, so that only this module can implement their
// interfaces.
var sealing = map[string]bool{
	"clustercache.Watcher.Spec": true, "clustercache.ContentWatch.Spec": true, "credential.Provider.Bind": true,
}

// api is what a check of the exported API needs to know about a package.
type api struct {
	name  string // "clustercache"
	fset  *token.FileSet
	files []*ast.File
	types *types.Package
}

// apiChecker finds what is wrong with the exported API of a package.
type apiChecker struct {
	api
	problems []string
}

func (c *apiChecker) report(name, problem string) {
	c.problems = append(c.problems, c.name+"."+name+": "+problem)
}

// internalType reports whether t is declared in an internal package of this module, or in the
// implementation of connections.
func internalType(object types.Object) bool {
	if object.Pkg() == nil {
		return false
	}
	path := object.Pkg().Path()
	return strings.HasPrefix(path, module) &&
		(strings.Contains(path, "/internal/") || strings.HasPrefix(path, module+"/accessor"))
}

// checkType reports internal types in t, which is part of the signature of name.
func (c *apiChecker) checkType(name string, t types.Type) {
	c.walk(t, map[types.Type]bool{}, func(object types.Object) {
		if internalType(object) {
			c.report(name, "names "+object.Pkg().Name()+"."+object.Name()+", an internal type")
		}
	})
}

// walk calls visit for each named type or alias in t. Types of other packages are not entered.
func (c *apiChecker) walk(t types.Type, seen map[types.Type]bool, visit func(types.Object)) {
	if seen[t] {
		return
	}
	seen[t] = true
	inner := func(t types.Type) { c.walk(t, seen, visit) }
	tuple := func(all *types.Tuple) {
		for v := range all.Variables() {
			inner(v.Type())
		}
	}
	switch t := t.(type) {
	case *types.Alias:
		visit(t.Obj())
		for a := range t.TypeArgs().Types() {
			inner(a)
		}
	case *types.Named:
		visit(t.Obj())
		for a := range t.TypeArgs().Types() {
			inner(a)
		}
	case *types.Pointer:
		inner(t.Elem())
	case *types.Slice:
		inner(t.Elem())
	case *types.Array:
		inner(t.Elem())
	case *types.Chan:
		inner(t.Elem())
	case *types.Map:
		inner(t.Key())
		inner(t.Elem())
	case *types.Signature:
		for p := range t.TypeParams().TypeParams() {
			inner(p.Constraint())
		}
		tuple(t.Params())
		tuple(t.Results())
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				inner(f.Type())
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			if m.Exported() {
				inner(m.Type())
			}
		}
		for e := range t.EmbeddedTypes() {
			inner(e)
		}
	}
}

// checkObject checks the signature of an exported name.
func (c *apiChecker) checkObject(object types.Object) {
	name := object.Name()
	declared, isType := object.(*types.TypeName)
	switch {
	case !isType:
		if _, constant := object.(*types.Const); constant {
			return // the type of a constant with an internal type has a public alias
		}
		c.checkType(name, object.Type())
	case declared.IsAlias():
		target := types.Unalias(declared.Type())
		named, ok := target.(*types.Named)
		if !ok {
			c.checkType(name, target)
			return
		}
		if !internalType(named.Obj()) {
			return
		}
		switch _, isStruct := named.Underlying().(*types.Struct); {
		case isStruct && !travelling[c.name+"."+name]:
			c.report(name, "is an alias to a struct of an internal package: declare the struct here")
		case isStruct:
			c.checkFieldsInComment(name, named)
		case types.IsInterface(named):
			c.report(name, "is an alias to an interface of an internal package: declare the interface here")
		}
	default:
		named := declared.Type().(*types.Named)
		if declared, isInterface := named.Underlying().(*types.Interface); isInterface {
			for m := range declared.Methods() {
				if m.Exported() && !sealing[c.name+"."+name+"."+m.Name()] {
					c.checkType(name+"."+m.Name(), m.Type())
				}
			}
			return
		}
		c.checkType(name, named.Underlying())
		for m := range types.NewMethodSet(types.NewPointer(named)).Methods() { // also those of embedded types
			if m.Obj().Exported() {
				c.checkType(name+"."+m.Obj().Name(), m.Obj().Type())
			}
		}
	}
}

// checkFieldsInComment reports the fields of an alias to a struct that its comment does not have.
func (c *apiChecker) checkFieldsInComment(name string, named *types.Named) {
	comment := c.comment(name)
	for f := range named.Underlying().(*types.Struct).Fields() {
		if f.Exported() && !regexp.MustCompile(`\b`+f.Name()+`\b`).MatchString(comment) {
			c.report(name, "is an alias whose comment does not explain the field "+f.Name())
		}
	}
}

// comment returns the doc comment of an exported type.
func (c *apiChecker) comment(name string) (comment string) {
	for _, file := range c.files {
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.TypeSpec); ok && spec.Name.Name == name {
				comment = spec.Doc.Text()
			}
			return true
		})
	}
	return comment
}

// checkComments reports exported names, fields and methods without a comment.
func (c *apiChecker) checkComments() {
	for _, file := range c.files {
		if strings.HasSuffix(c.fset.Position(file.Package).Filename, "zz_generated.openapi.go") {
			continue // openapi-gen writes no comments
		}
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || c.exportedReceiver(d)) {
					c.report(d.Name.Name, "has no doc comment")
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					c.checkSpecComment(d, spec)
				}
			}
		}
	}
}

func (c *apiChecker) exportedReceiver(d *ast.FuncDecl) bool {
	t := d.Recv.List[0].Type
	for {
		switch inner := t.(type) {
		case *ast.StarExpr:
			t = inner.X
		case *ast.IndexExpr:
			t = inner.X
		case *ast.IndexListExpr:
			t = inner.X
		case *ast.Ident:
			return inner.IsExported()
		default:
			return false
		}
	}
}

func (c *apiChecker) checkSpecComment(group *ast.GenDecl, spec ast.Spec) {
	alone := len(group.Specs) == 1 && group.Doc != nil
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && !alone && s.Doc == nil && s.Comment == nil {
				c.report(name.Name, "has no doc comment")
			}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return
		}
		if s.Doc == nil && !alone {
			c.report(s.Name.Name, "has no doc comment")
		}
		switch t := s.Type.(type) {
		case *ast.StructType:
			c.checkFieldComments(s.Name.Name, t.Fields)
		case *ast.InterfaceType:
			c.checkFieldComments(s.Name.Name, t.Methods)
		}
	}
}

// checkFieldComments reports fields without a comment. One comment may serve the fields that follow
// without a line in between.
func (c *apiChecker) checkFieldComments(name string, fields *ast.FieldList) {
	documented, end := false, 0
	for _, field := range fields.List {
		documented = field.Doc != nil || field.Comment != nil || documented && c.fset.Position(field.Pos()).Line == end+1
		end = c.fset.Position(field.End()).Line
		for _, n := range field.Names {
			if n.IsExported() && !documented {
				c.report(name+"."+n.Name, "has no comment")
			}
		}
	}
}

// exported returns the exported names of the package.
func (c *apiChecker) exported() (list []types.Object) {
	scope := c.types.Scope()
	for _, name := range scope.Names() {
		if token.IsExported(name) {
			list = append(list, scope.Lookup(name))
		}
	}
	return list
}

// signature calls visit for each named type that the signature of an exported name uses.
func (c *apiChecker) signature(object types.Object, visit func(types.Object)) {
	others := func(used types.Object) {
		if used != object {
			visit(used)
		}
	}
	seen := map[types.Type]bool{}
	declared, isType := object.(*types.TypeName)
	if !isType {
		c.walk(object.Type(), seen, others)
		return
	}
	if declared.IsAlias() {
		c.walk(declared.Type().(*types.Alias).Rhs(), seen, others)
		return
	}
	named := declared.Type().(*types.Named)
	c.walk(named.Underlying(), seen, others)
	for m := range named.Methods() {
		if m.Exported() {
			c.walk(m.Type(), seen, others)
		}
	}
}

// loadAPI parses and type-checks a public package.
func loadAPI(t *testing.T, fset *token.FileSet, imports types.Importer, dir, name string) *apiChecker {
	t.Helper()
	g := NewWithT(t)
	found, err := filepath.Glob(filepath.Join(dir, "*.go"))
	g.Expect(err).NotTo(HaveOccurred())
	c := &apiChecker{api: api{name: name, fset: fset}}
	for _, path := range found {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		c.files = append(c.files, file)
	}
	config := types.Config{Importer: imports}
	c.types, err = config.Check(module+"/"+name, fset, c.files, nil)
	g.Expect(err).NotTo(HaveOccurred())
	return c
}

// sourceImporter reads the packages that the public packages import from the build cache.
func sourceImporter(t *testing.T, fset *token.FileSet) types.Importer {
	t.Helper()
	arguments := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, name := range public {
		arguments = append(arguments, module+"/"+name)
	}
	command := exec.Command("go", arguments...)
	command.Dir = root
	out, err := command.Output()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
}

// What users may rely on shows its fields, names no internal type, says what it is, and is needed.
func TestPublicAPI(t *testing.T) {
	g := NewWithT(t)
	fset := token.NewFileSet()
	imports := sourceImporter(t, fset)
	used := map[string]bool{}
	var all []*apiChecker
	for _, name := range public {
		c := loadAPI(t, fset, imports, filepath.Join(root, name), name)
		all = append(all, c)
		for _, object := range c.exported() {
			c.checkObject(object)
			c.signature(object, func(other types.Object) {
				if other.Pkg() != nil {
					used[strings.TrimPrefix(other.Pkg().Path(), module+"/")+"."+other.Name()] = true
				}
			})
		}
		c.checkComments()
	}
	words := wordsOfUsers(t)
	var problems []string
	for _, c := range all {
		for _, object := range c.exported() {
			if _, constant := object.(*types.Const); constant && !types.Identical(object.Type(), object.Type().Underlying()) {
				continue // one of the values of a type, all of which have a name
			}
			if !used[c.name+"."+object.Name()] && !words[object.Name()] {
				c.report(object.Name(), "is used by no documentation, example or other public signature")
			}
		}
		problems = append(problems, c.problems...)
	}
	g.Expect(problems).To(BeEmpty())
}

// wordsOfUsers returns the words in what users read: documentation, package comments and examples.
func wordsOfUsers(t *testing.T) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	add := func(path string) {
		content, err := os.ReadFile(path)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		for _, word := range regexp.MustCompile(`\w+`).FindAllString(string(content), -1) {
			words[word] = true
		}
	}
	NewWithT(t).Expect(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		base := filepath.Base(path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (base == "designs" || base == ".git"):
			return filepath.SkipDir
		case entry.IsDir():
		case base == "doc.go" && !strings.Contains(path, "internal/"), base == "example_test.go",
			strings.HasSuffix(base, ".md") && base != "CHANGELOG.md",
			strings.HasSuffix(base, ".go") && strings.Contains(path, "/examples/"):
			add(path)
		}
		return nil
	})).To(Succeed())
	return words
}

// The checks find what they are for.
func TestPublicAPIChecksFind(t *testing.T) {
	g := NewWithT(t)
	fset := token.NewFileSet()
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "x.go"), []byte(`package x

import "`+module+`/internal/connstate"

// Phase is fine: no struct.
type Phase = connstate.Phase

// Health hides its fields.
type Health = connstate.Health

type Silent struct{ Field int }

// Named names an internal type.
type Named struct {
	// Field is documented.
	Field connstate.Identity
	Same  int

	Bare string
}

// Method names an internal type.
func (Named) Method() connstate.Health { return connstate.Health{} }

// Function names an internal type.
type Function = func(connstate.Health)

type embedded struct{}

// Promoted names an internal type.
func (embedded) Promoted() connstate.Health { return connstate.Health{} }

// Embedding shows the methods of embedded.
type Embedding struct{ embedded }

// Interface names an internal type.
type Interface interface {
	// Answer names an internal type.
	Answer() connstate.Health
	Bare()
}

func Undocumented(Named, Phase, Health, Silent) {}
`), 0o600)).To(Succeed())
	c := loadAPI(t, fset, sourceImporter(t, fset), dir, "x")
	for _, object := range c.exported() {
		c.checkObject(object)
	}
	c.checkComments()
	g.Expect(c.problems).To(ConsistOf(
		"x.Health: is an alias to a struct of an internal package: declare the struct here",
		"x.Embedding.Promoted: names connstate.Health, an internal type",
		"x.Function: names connstate.Health, an internal type",
		"x.Interface.Answer: names connstate.Health, an internal type",
		"x.Named: names connstate.Identity, an internal type",
		"x.Named.Method: names connstate.Health, an internal type",
		"x.Named.Bare: has no comment",
		"x.Silent: has no doc comment",
		"x.Silent.Field: has no comment",
		"x.Undocumented: has no doc comment",
	))
}
