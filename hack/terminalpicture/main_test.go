package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDraw(t *testing.T) {
	g := NewWithT(t)
	var picture bytes.Buffer
	g.Expect(draw(strings.NewReader("Building\nlatchkey demo: <five> & more\n      ok    "+strings.Repeat("word ", 50)+
		"at the end\n"), &picture)).To(Succeed())
	g.Expect(picture.String()).To(And(Not(ContainSubstring("Building")), ContainSubstring("&lt;five&gt; &amp; more"),
		ContainSubstring(">      ok    word word"), ContainSubstring(">            word word"),
		ContainSubstring("at the end<"), Not(ContainSubstring("…"))))
	g.Expect(strings.Count(picture.String(), `fill="#7ee787"`)).To(Equal(3), "all rows of a line have its color")
	decoder := xml.NewDecoder(&picture)
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	g.Expect(draw(strings.NewReader("make: *** failed\n"), &picture)).NotTo(Succeed())
}

// No row is wider than the terminal, and nothing is lost.
func TestWrap(t *testing.T) {
	g := NewWithT(t)
	words, long := strings.Repeat("word ", 60)+"end", strings.Repeat("x", 300)
	for _, line := range []string{"", "short", words, long, "      saw   " + words, "      saw   " + long + " end",
		strings.Repeat("x", columns), strings.Repeat("é", columns+1), strings.Repeat("x", columns) + " end"} {
		wrapped := wrap(line, 12)
		var text strings.Builder
		for _, row := range wrapped {
			g.Expect([]rune(row)).To(WithTransform(func(r []rune) int { return len(r) }, BeNumerically("<=", columns)), line)
			text.WriteString(row)
		}
		without := func(s string) string { return strings.ReplaceAll(s, " ", "") }
		g.Expect(without(text.String())).To(Equal(without(line)))
	}
	g.Expect(wrap(strings.Repeat("x", columns)+" end", 12)).To(HaveLen(2))
	g.Expect(wrap("      saw   "+strings.Repeat("x", 300), 12)[0]).To(HaveLen(columns), "no row for the first word alone")
}
