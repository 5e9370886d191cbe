// Command terminalpicture draws the demo's output, from standard input, as a terminal in an SVG
// file on standard output. The Makefile runs terminalpicture to draw docs/run.svg. Lines that are
// longer than the terminal is wide go on below.
package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"os"
	"strings"
)

func main() {
	if err := draw(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "terminalpicture:", err)
		os.Exit(1)
	}
}

const (
	columns    = 118
	lineHeight = 17
	margin     = 18
	width      = columns*7.25 + 2*margin
	// continuation is how far the further rows of most lines are indented.
	continuation = 2
)

// colors are those of the first word of a line.
var colors = map[string]string{"did": "#8b949e", "saw": "#79c0ff", "ok": "#7ee787", "FAIL": "#ff7b72", "All": "#7ee787"}

// draw draws the lines from the demo's headline on.
func draw(in io.Reader, out io.Writer) error {
	var lines []string
	scanner := bufio.NewScanner(in)
	for scanner.Scan() {
		if line := scanner.Text(); len(lines) > 0 || strings.HasPrefix(line, "latchkey demo:") {
			lines = append(lines, line)
		}
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	if len(lines) == 0 {
		return fmt.Errorf("the input has no headline of the demo: run \"make run ONCE=1\" into it")
	}
	lines = append([]string{"$ make run"}, lines...)
	var rows []row
	for _, line := range lines {
		rows = append(rows, rowsOf(line)...)
	}
	height := len(rows)*lineHeight + 2*margin
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" role="img" aria-label="make run">`+"\n",
		width, height)
	fmt.Fprintln(w, `<rect width="100%" height="100%" rx="8" fill="#0d1117"/>`)
	fmt.Fprintln(w,
		`<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="12" fill="#e6edf3">`)
	for i, r := range rows {
		fmt.Fprintf(w, `<text x="%d" y="%d" xml:space="preserve"%s>%s</text>`+"\n", margin, margin+(i+1)*lineHeight-5,
			r.style, html.EscapeString(r.text))
	}
	fmt.Fprintln(w, "</g>\n</svg>")
	return w.Flush()
}

// row is a row of the terminal.
type row struct{ text, style string }

// rowsOf returns the rows of a line, all in the style of the line.
func rowsOf(line string) (rows []row) {
	style, indent := "", continuation
	words := strings.Fields(line)
	switch {
	case len(words) > 0 && colors[words[0]] != "":
		style = fmt.Sprintf(` fill="%s"`, colors[words[0]])
		if len(words) > 1 {
			_, after, _ := strings.Cut(line, words[0])
			indent = min(len(line)-len(strings.TrimLeft(after, " ")), columns/2) // below the second word
		}
	case strings.HasPrefix(line, "["):
		style = ` font-weight="bold"`
	}
	for _, text := range wrap(line, indent) {
		rows = append(rows, row{text, style})
	}
	return rows
}

// wrap breaks a line that is longer than the terminal is wide, between words where it can. What
// follows is indented.
func wrap(line string, indent int) (lines []string) {
	runes := []rune(line)
	start := indent // of the text of a row
	for len(runes) > columns {
		end := columns
		for i := columns; i > start; i-- {
			if runes[i] == ' ' {
				end = i
				break
			}
		}
		lines = append(lines, strings.TrimRight(string(runes[:end]), " "))
		rest := strings.TrimLeft(string(runes[end:]), " ")
		runes, start = []rune(strings.Repeat(" ", indent)+rest), indent
	}
	return append(lines, string(runes))
}
