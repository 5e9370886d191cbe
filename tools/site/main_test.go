package main

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// The site of this repository has every page, and no link that leads nowhere.
func TestSite(t *testing.T) {
	g := NewWithT(t)
	out := filepath.Join(t.TempDir(), "site")
	g.Expect(build("../..", out, "https://forge.example.com/")).To(Succeed())
	content := func(name string) string {
		text, err := os.ReadFile(filepath.Join(out, name))
		g.Expect(err).NotTo(HaveOccurred())
		return string(text)
	}
	g.Expect(content("index.html")).To(And(ContainSubstring(`<a href="get-started.html">Get started</a>`),
		ContainSubstring("<title>Documentation · latchkey</title>")))
	g.Expect(content("operations.html")).To(And(ContainSubstring(`aria-current="page">Operations</a>`),
		ContainSubstring(`src="pictures/statuspage-light.png"`), ContainSubstring(`id="status-page"`),
		ContainSubstring(`href="https://forge.example.com/deploy/observability"`)))
	g.Expect(content("designs/050-the-status-page-is-one-document.html")).To(ContainSubstring(`href="../index.html"`))
	g.Expect(content("pictures/statuspage-light.png")).NotTo(BeEmpty())
	g.Expect(content("changelog.html")).NotTo(BeEmpty())
}

// A link to a page, an anchor, a file or a picture that does not exist is an error that names it.
func TestLinksThatLeadNowhere(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	for name, content := range map[string]string{
		"README.md": "# A\n\n[b](docs/README.md#there) [x](docs/gone.md) [x](docs/README.md#gone) [x](gone.go)\n" +
			"![x](gone.png)\n",
		"docs/README.md": "# B\n\n## There, it `is`\n\n## There\n\n## There\n\n[1](#there-1) [2](#there-it-is) [3](../README.md) " +
			"[4](https://example.com/x#y)\n",
	} {
		g.Expect(write(filepath.Join(root, name), []byte(content))).To(Succeed())
	}
	err := build(root, filepath.Join(root, "out"), "")
	g.Expect(err).To(MatchError("links that lead nowhere:\nREADME.md: docs/README.md#gone\nREADME.md: docs/gone.md\n" +
		"README.md: gone.go\nREADME.md: gone.png"))
}
