package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// commentWidth is how many columns a line with nothing but a comment has at most. A tab is one, as
// for golangci-lint.
const commentWidth = 100

var (
	commentLine = regexp.MustCompile(`^\t*// [^\t]`)
	noProse     = regexp.MustCompile(`^\t*// \+|://|^\t*//  +[^-\d\s]`)
)

// wideComments returns the lines of Go code that are wider than prose may be. Addresses, markers
// and indented text are no prose.
func wideComments(name, code string) (found []string) {
	for i, line := range strings.Split(code, "\n") {
		if commentLine.MatchString(line) && !noProse.MatchString(line) && len([]rune(line)) > commentWidth {
			found = append(found, fmt.Sprintf("%s:%d", name, i+1))
		}
	}
	return found
}

// goFiles are the names and the contents of all Go files that people write.
func goFiles(t *testing.T) map[string]string {
	t.Helper()
	g := NewWithT(t)
	files := map[string]string{}
	g.Expect(fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".go" || strings.HasPrefix(entry.Name(), "zz_generated") {
			return err
		}
		code, err := os.ReadFile(path.Join(root, name))
		files[name] = string(code)
		return err
	})).To(Succeed())
	g.Expect(len(files)).To(BeNumerically(">", 300))
	return files
}

// Comments are as narrow as people read well.
func TestCommentWidth(t *testing.T) {
	var wide []string
	for name, code := range goFiles(t) {
		wide = append(wide, wideComments(name, code)...)
	}
	NewWithT(t).Expect(wide).To(BeEmpty(), "comments wider than %d columns", commentWidth)
}

func TestWideCommentsAreFound(t *testing.T) {
	g := NewWithT(t)
	word := strings.Repeat("x", 90)
	g.Expect(wideComments("a.go", "// "+word+"\n\t// "+word+" word\nfunc f() {} // "+word+word)).
		To(HaveExactElements())
	g.Expect(wideComments("a.go", "package a\n\n\t// "+word+" a word")).To(HaveExactElements("a.go:3"))
	g.Expect(wideComments("a.go", "//   - "+word+" a word")).To(HaveExactElements("a.go:1"))
	g.Expect(wideComments("a.go", "// https://"+word+word)).To(BeEmpty())
}

// Examples are copied, so they have no dependency that only this repository wants.
func TestExamplesUseStandardErrors(t *testing.T) {
	for name, code := range goFiles(t) {
		if strings.HasPrefix(name, "examples/") {
			NewWithT(t).Expect(code).NotTo(ContainSubstring(`"github.com/pkg/errors"`), name)
		}
	}
}

// packedLiterals returns the struct literals of Go code that have several lines, and a field that
// does not begin a line.
func packedLiterals(name, code string) (found []string) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, code, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	line := func(at token.Pos) int { return files.Position(at).Line }
	ast.Inspect(file, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok || len(literal.Elts) < 2 || line(literal.Lbrace) == line(literal.Rbrace) {
			return true
		}
		before := literal.Lbrace
		for _, element := range literal.Elts {
			field, ok := element.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if _, ok := field.Key.(*ast.Ident); ok && line(field.Pos()) == line(before) {
				found = append(found, fmt.Sprintf("%s:%d", name, line(field.Pos())))
			}
			before = field.End()
		}
		return true
	})
	return found
}

// A struct literal is on one line, or has a line for each field.
func TestOneFieldALine(t *testing.T) {
	var packed []string
	for name, code := range goFiles(t) {
		packed = append(packed, packedLiterals(name, code)...)
	}
	NewWithT(t).Expect(packed).To(BeEmpty(), "begin a line with each field, or write all on one line")
}

func TestPackedLiteralsAreFound(t *testing.T) {
	g := NewWithT(t)
	literal := func(text string) []string { return packedLiterals("a.go", "package a\n\nvar _ = "+text) }
	g.Expect(literal("x{a: 1, b: 2}")).To(BeEmpty())
	g.Expect(literal("x{\na: 1,\nb: 2,\n}")).To(BeEmpty())
	g.Expect(literal("x{a: y{\nb: 1,\nc: 2,\n}}")).To(BeEmpty(), "a single field")
	g.Expect(literal("[]int{1, 2,\n3}")).To(BeEmpty(), "no fields")
	g.Expect(literal("x{\na: 1, b: 2,\n}")).To(HaveExactElements("a.go:4"))
	g.Expect(literal("x{a: 1,\nb: 2}")).To(HaveExactElements("a.go:3"))
	g.Expect(literal("x{a: 1, b: func() {\n}}")).To(HaveExactElements("a.go:3", "a.go:3"))
}
