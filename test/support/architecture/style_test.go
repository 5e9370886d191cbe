package architecture

import (
	"fmt"
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

// Comments are as narrow as people read well.
func TestCommentWidth(t *testing.T) {
	g := NewWithT(t)
	var wide []string
	files := 0
	g.Expect(fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".go" || strings.HasPrefix(entry.Name(), "zz_generated") {
			return err
		}
		code, err := os.ReadFile(path.Join(root, name))
		files++
		wide = append(wide, wideComments(name, string(code))...)
		return err
	})).To(Succeed())
	g.Expect(files).To(BeNumerically(">", 300))
	g.Expect(wide).To(BeEmpty(), "comments wider than %d columns", commentWidth)
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
