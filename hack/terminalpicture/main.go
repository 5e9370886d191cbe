// Command terminalpicture draws the demo's output, from standard input, as a terminal in an SVG
// file on standard output. The Makefile runs terminalpicture to draw docs/run.svg.
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
	height := len(lines)*lineHeight + 2*margin
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" role="img" aria-label="make run">`+"\n",
		width, height)
	fmt.Fprintln(w, `<rect width="100%" height="100%" rx="8" fill="#0d1117"/>`)
	fmt.Fprintln(w,
		`<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="12" fill="#e6edf3">`)
	for i, line := range lines {
		color := ""
		if words := strings.Fields(line); len(words) > 0 && colors[words[0]] != "" {
			color = fmt.Sprintf(` fill="%s"`, colors[words[0]])
		} else if strings.HasPrefix(line, "[") {
			color = ` font-weight="bold"`
		}
		fmt.Fprintf(w, `<text x="%d" y="%d" xml:space="preserve"%s>%s</text>`+"\n", margin, margin+(i+1)*lineHeight-5,
			color,
			html.EscapeString(cut(line)))
	}
	fmt.Fprintln(w, "</g>\n</svg>")
	return w.Flush()
}

// cut cuts a line that is longer than the terminal is wide.
func cut(line string) string {
	if runes := []rune(line); len(runes) > columns {
		return string(runes[:columns-1]) + "…"
	}
	return line
}
