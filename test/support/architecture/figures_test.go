package architecture

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/figures"
)

// costs match figures of cost in prose: times below a second, memory, rates, goroutines and cores.
var costs = []*regexp.Regexp{
	regexp.MustCompile(`\d[\d,.]*(?: (?:to|and|or) \d[\d,.]*)? ?(?:µs|ns|ms|[KMG]i?B|k[Bb]|(?:micro|milli|nano)seconds?)\b`),
	regexp.MustCompile(`\d[\d,.]*(?: [\w-]+){0,3} (?:a|per) (?:second|minute|identity|edit|connect)\b`),
	regexp.MustCompile(`\d[\d,.]* (?:goroutines|cores of)\b`),
}

var (
	blockOfCode   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	codeSpan      = regexp.MustCompile("`[^`]*`")
	generated     = regexp.MustCompile(`(?s)<!-- table: .*?<!-- end of table -->`)
	beginOfLine   = regexp.MustCompile(`(?m)^[\t ]*(?://|>)?[\t ]*`)
	placeOfFigure = regexp.MustCompile(`\{([^}]+)\}`)
)

// prose returns a page, or the comments of a doc.go, as one line without code and generated tables.
func prose(page string) string {
	page = blockOfCode.ReplaceAllString(generated.ReplaceAllString(page, ""), "")
	return strings.Join(strings.Fields(beginOfLine.ReplaceAllString(page, " ")), " ")
}

// listed is a line of testdata/figures.txt: text of a page that has a figure of cost.
type listed struct {
	page, how, text string
}

// uncovered returns the figures of cost of a page that no listed text has, and the listed texts
// that the page lacks.
func uncovered(page string, texts []string) (unlisted, lacking []string) {
	page = prose(page)
	covered := make([]bool, len(page))
	for _, text := range texts {
		found := false
		for from := 0; ; {
			at := strings.Index(page[from:], text)
			if at < 0 {
				break
			}
			found = true
			for i := range text {
				covered[from+at+i] = true
			}
			from += at + len(text)
		}
		if !found {
			lacking = append(lacking, text)
		}
	}
	for _, span := range codeSpan.FindAllStringIndex(page, -1) {
		for i := span[0]; i < span[1]; i++ {
			covered[i] = true
		}
	}
	for _, cost := range costs {
		for _, match := range cost.FindAllStringIndex(page, -1) {
			if !covered[match[0]] {
				unlisted = append(unlisted, page[max(0, match[0]-40):min(len(page), match[1]+20)])
			}
		}
	}
	return unlisted, lacking
}

// The tables of docs/benchmarks.md have what is recorded, and the prose of pages and of packages
// has the same figures. testdata/figures.txt lists all figures of cost.
func TestFigures(t *testing.T) {
	g := NewWithT(t)
	record, err := figures.Read(root + "/bench/record.json")
	g.Expect(err).NotTo(HaveOccurred())
	texts := pages(t)
	g.Expect(record.Update(texts["docs/benchmarks.md"])).To(Equal(texts["docs/benchmarks.md"]),
		"the tables are not those of the record: run make bench-peers REPORT=1")
	for name, code := range goFiles(t) {
		if path.Base(name) == "doc.go" {
			texts[name] = code
		}
	}
	list, err := os.ReadFile("testdata/figures.txt")
	g.Expect(err).NotTo(HaveOccurred())
	expected := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(list)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, " | ", 3)
		g.Expect(fields).To(HaveLen(3), line)
		l := listed{fields[0], fields[1], fields[2]}
		g.Expect(texts).To(HaveKey(l.page), line)
		if l.how == "measured" {
			g.Expect(l.text).To(MatchRegexp(placeOfFigure.String()), line)
			l.text = placeOfFigure.ReplaceAllStringFunc(l.text, func(name string) string {
				text, err := record.Text(strings.Trim(name, "{}"))
				g.Expect(err).NotTo(HaveOccurred(), line)
				return text
			})
			bare := strings.TrimSpace(placeOfFigure.ReplaceAllString(fields[2], "x"))
			unlisted, _ := uncovered(bare, nil)
			g.Expect(unlisted).To(BeEmpty(), "%s: a figure that is no {name}", line)
		} else {
			why, ok := strings.CutPrefix(l.how, "exempt ")
			g.Expect(ok && len(why) > 10).To(BeTrue(), "%s: neither measured nor exempt with a reason", line)
		}
		expected[l.page] = append(expected[l.page], l.text)
	}
	for name, page := range texts {
		unlisted, lacking := uncovered(page, expected[name])
		for _, text := range unlisted {
			t.Errorf("%s: testdata/figures.txt does not list the figure in %q", name, text)
		}
		for _, text := range lacking {
			t.Errorf("%s lacks %q, which testdata/figures.txt lists with the figures of the record", name, text)
		}
	}
}

func TestFiguresAreFound(t *testing.T) {
	g := NewWithT(t)
	for _, text := range []string{"takes 12 KiB", "in 98 ns", "about 3 µs", "50 to 60 ms", "6.5KiB", "1,390 MiB",
		"30 requests a second", "8 reviews per edit", "0.045 goroutines", "90 access reviews per second"} {
		unlisted, _ := uncovered("A page that "+text+".", nil)
		g.Expect(unlisted).To(HaveLen(1), text)
		unlisted, lacking := uncovered("A page that\n"+text+".", []string{"that " + text})
		g.Expect(fmt.Sprint(unlisted, lacking)).To(Equal("[] []"), text)
	}
	unlisted, lacking := uncovered("A page\n```\n3 ms\n```\nwith `GOMEMLIMIT=5MiB` in 10 s.", []string{"11 KiB"})
	g.Expect(fmt.Sprint(unlisted, lacking)).To(Equal("[] [11 KiB]"))
}
