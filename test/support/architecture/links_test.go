package architecture

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

var (
	fence       = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	inlineCode  = regexp.MustCompile("`[^`\n]+`")
	linkTarget  = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	heading     = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#*$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]`)
	linkText    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchorsOf returns the anchors that GitHub gives the headings of a page.
func anchorsOf(page string) map[string]bool {
	anchors := map[string]bool{}
	for _, found := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		text := linkText.ReplaceAllString(found[1], "$1")
		base := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
		anchor := base
		for n := 1; anchors[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", base, n)
		}
		anchors[anchor] = true
	}
	return anchors
}

// brokenLinks returns the links of a page that lead nowhere in the repository. exists and anchors
// are about paths from its root.
func brokenLinks(name, page string, exists func(string) bool, anchors func(string) map[string]bool) (broken []string) {
	page = inlineCode.ReplaceAllString(fence.ReplaceAllString(page, ""), "")
	for _, found := range linkTarget.FindAllStringSubmatch(page, -1) {
		link, err := url.Parse(found[1])
		if err != nil {
			broken = append(broken, name+": "+err.Error())
			continue
		}
		if link.Scheme != "" {
			continue // elsewhere
		}
		target := name
		if link.Path != "" {
			target = path.Join(path.Dir(name), link.Path)
		}
		switch {
		case !exists(target):
			broken = append(broken, fmt.Sprintf("%s: %s does not exist", name, found[1]))
		case link.Fragment != "" && strings.HasSuffix(target, ".md") && !anchors(target)[link.Fragment]:
			broken = append(broken, fmt.Sprintf("%s: %s has no heading #%s", name, target, link.Fragment))
		}
	}
	return broken
}

// Every link of a page leads somewhere.
func TestLinks(t *testing.T) {
	g := NewWithT(t)
	var names []string
	g.Expect(fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "node_modules"}, entry.Name()):
			return fs.SkipDir
		case err == nil && path.Ext(name) == ".md":
			names = append(names, name)
		}
		return err
	})).To(Succeed())
	read := func(name string) string {
		content, err := os.ReadFile(path.Join(root, name))
		g.Expect(err).NotTo(HaveOccurred())
		return string(content)
	}
	exists := func(name string) bool {
		_, err := os.Stat(path.Join(root, name))
		return err == nil
	}
	anchors := func(name string) map[string]bool { return anchorsOf(read(name)) }
	g.Expect(len(names)).To(BeNumerically(">", 50))
	for _, name := range names {
		g.Expect(brokenLinks(name, read(name), exists, anchors)).To(BeEmpty())
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	g := NewWithT(t)
	page := "# One `x`\n## Two, too\n## Two, too\n[a](#one-x) [b](#two-too-1) [c](other.md#here) [d](https://else.where)\n" +
		"`[not](a-link)`\n```\n[nor](this)\n# Nor this\n```\n"
	exists := func(name string) bool { return name == "docs/page.md" || name == "docs/other.md" }
	anchors := func(name string) map[string]bool {
		if name == "docs/page.md" {
			return anchorsOf(page)
		}
		return map[string]bool{"here": true}
	}
	g.Expect(brokenLinks("docs/page.md", page, exists, anchors)).To(BeEmpty())
	for link, want := range map[string]string{
		"[a](missing.md)": "missing.md does not exist", "[a](../other.md)": "does not exist",
		"[a](#three)": "no heading #three", "![a](other.md#there)": "no heading #there", "[a](#nor-this)": "no heading",
	} {
		g.Expect(brokenLinks("docs/page.md", page+link, exists, anchors)).To(HaveExactElements(ContainSubstring(want)), link)
	}
}
