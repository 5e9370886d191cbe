package architecture

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// pages are the documents for users.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(root + "/docs/*.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	pages := map[string]string{}
	for _, file := range append(files, root+"/README.md", root+"/CONTRIBUTING.md", root+"/SECURITY.md",
		root+"/VERSIONING.md", root+"/CHANGELOG.md", root+"/deploy/helm/latchkey/README.md") {
		content, err := os.ReadFile(file)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		pages[strings.TrimPrefix(file, root+"/")] = string(content)
	}
	return pages
}

// blocks returns the code blocks of a language.
func blocks(page, language string) (found []string) {
	for _, block := range strings.Split(page, "```"+language+"\n")[1:] {
		code, _, _ := strings.Cut(block, "```")
		found = append(found, strings.TrimSpace(code))
	}
	return found
}

// part separates the parts of a block, which compare two versions.
var part = regexp.MustCompile(`(?m)^// (before|after)\b.*\n`)

// The Go code of every page is a copy of examples and tests, which compile and run, or of the
// programs in test/docs, which "make test-docs" compiles.
func TestSnippetsCompile(t *testing.T) {
	g := NewWithT(t)
	var compiled strings.Builder
	for _, pattern := range []string{root + "/*/example_test.go", root + "/*/*/example_test.go",
		root + "/examples/*/*.go", root + "/examples/*/*/*.go", root + "/examples/*/*/*/*.go", root + "/test/docs/*.go"} {
		files, err := filepath.Glob(pattern)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(files).NotTo(BeEmpty(), pattern)
		for _, file := range files {
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			compiled.Write(content)
		}
	}
	count := 0
	for name, page := range pages(t) {
		for _, block := range blocks(page, "go") {
			for _, code := range part.Split(block, -1) {
				code = strings.TrimSpace(code)
				if code == "" {
					continue
				}
				count++
				indented := func(by string) string {
					lines := strings.Split(code, "\n")
					for i, line := range lines {
						if line != "" {
							lines[i] = by + line
						}
					}
					return "\n" + strings.Join(lines, "\n") + "\n"
				}
				g.Expect(compiled.String()).To(Or(ContainSubstring(indented("\t\t")), ContainSubstring(indented("\t")),
					ContainSubstring(indented(""))), "%s: no compiled file has\n%s", name, code)
			}
		}
	}
	g.Expect(count).To(BeNumerically(">", 15))
}

// command matches a command in running text.
var command = regexp.MustCompile(`^(make|kubectl|go|latchkey|curl|git|jq) [a-z./-]`)

// commandsOf returns the commands that a page tells people to run: those of console blocks, and
// code in the text. A line that is indented continues the command before: of a command of several
// lines, commandsOf returns the first.
func commandsOf(page string) (commands []string) {
	comment := regexp.MustCompile(`\s+#.*`)
	for _, block := range blocks(page, "console") {
		for _, line := range strings.Split(block, "\n") {
			if line != "" && !strings.HasPrefix(line, " ") {
				commands = append(commands, comment.ReplaceAllString(line, ""))
			}
		}
	}
	text := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(page, "")
	for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
		if words := strings.Join(strings.Fields(code[1]), " "); command.MatchString(words) {
			commands = append(commands, words)
		}
	}
	return commands
}

func TestCommandsAreFound(t *testing.T) {
	g := NewWithT(t)
	page := "Run `make run`, or:\n\n```console\nmake test # all of it\njq -r '\n    .verb' audit.log\n\nkubectl get pods\n```\n" +
		"\n```text\nyes\n```\n\n```sh\nls\n```\n"
	g.Expect(commandsOf(page)).To(ConsistOf("make run", "make test", "jq -r '", "kubectl get pods"))
}

// prompts returns the lines of fenced blocks that begin with a prompt.
func prompts(page string) (found []string) {
	inBlock := false
	for _, line := range strings.Split(page, "\n") {
		line = strings.TrimLeft(line, " >")
		switch {
		case strings.HasPrefix(line, "```"):
			inBlock = !inBlock
		case inBlock && strings.HasPrefix(line, "$ "):
			found = append(found, line)
		}
	}
	return found
}

// Blocks are for copying: they have no prompts, and what commands print is in blocks of its own.
func TestNoPrompts(t *testing.T) {
	g := NewWithT(t)
	for name, page := range pages(t) {
		g.Expect(prompts(page)).To(BeEmpty(), "%s: leave out the prompt, and put the output into a text block", name)
	}
}

func TestPromptsAreFound(t *testing.T) {
	g := NewWithT(t)
	g.Expect(prompts("$ not here\n```console\nls $ x\n```\n$ nor here")).To(BeEmpty())
	for _, page := range []string{"```console\n$ ls\nfile\n```", "```\n$ ls\n```", "1. x\n\n   ```sh\n   $ ls\n   ```",
		"> ```sh\n> $ ls\n> ```"} {
		g.Expect(prompts(page)).To(HaveExactElements("$ ls"), page)
	}
}

// Every command of every page is in the table, with the test that runs it, or the reason why none
// does.
func TestCommandsOfPages(t *testing.T) {
	g := NewWithT(t)
	table, err := os.ReadFile("testdata/commands.txt")
	g.Expect(err).NotTo(HaveOccurred())
	listed := map[string]bool{}
	tests := allTests(t)
	makefile, err := os.ReadFile(root + "/Makefile")
	g.Expect(err).NotTo(HaveOccurred())
	for _, line := range strings.Split(strings.TrimSpace(string(table)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		how, command, ok := strings.Cut(line, " | ")
		g.Expect(ok).To(BeTrue(), line)
		listed[command] = false
		switch kind, what, _ := strings.Cut(how, " "); kind {
		case "test":
			g.Expect(tests[what]).To(BeTrue(), "%s: there is no such test", line)
		case "test-docs":
			g.Expect(string(makefile)).To(MatchRegexp(`(?m)^test-docs:.*\n(\t.*\n)*\t`+regexp.QuoteMeta(command)), line)
		case "exempt":
			g.Expect(len(what)).To(BeNumerically(">", 10), "%s: the reason", line)
		default:
			t.Errorf("%s: neither test, test-docs nor exempt", line)
		}
	}
	for name, page := range pages(t) {
		for _, command := range commandsOf(page) {
			_, ok := listed[command]
			g.Expect(ok).To(BeTrue(), "%s: testdata/commands.txt does not have %q", name, command)
			listed[command] = true
		}
	}
	for command, used := range listed {
		g.Expect(used).To(BeTrue(), "no page has %q", command)
	}
}

// allTests returns the names of all tests.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	g := NewWithT(t)
	g.Expect(filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(content), -1) {
			names[match[1]] = true
		}
		return err
	})).To(Succeed())
	return names
}
