package compile

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Every is the time between two lines about the same program.
const Every = 10 * time.Second

// Progress writes lines about the compilation of one program: the first at once, then one every
// ten seconds, and one at the end. Its methods may be called concurrently.
type Progress struct {
	label string
	out   io.Writer
	now   func() time.Time

	mu       sync.Mutex // guards what follows, and the order of lines
	begun    time.Time
	shown    time.Time // the last line
	modules  int       // that were downloaded
	counted  bool      // total is known
	total    int       // packages to compile
	compiled int
	current  string // the package or module that the go command named last
}

// NewProgress writes the first line. The label names the program.
func NewProgress(label string, out io.Writer, now func() time.Time) *Progress {
	p := &Progress{label: label, out: out, now: now, begun: now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write("looking for what is compiled already")
	return p
}

// Downloads notes that the go command downloads a module.
func (p *Progress) Downloads(module string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modules++
	p.current = module
}

// Begin notes how many packages are to be compiled, and how many are there.
func (p *Progress) Begin(total, there int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted, p.total, p.current = true, total, ""
	if total > 0 {
		p.write(fmt.Sprintf("packages to compile: %d, there: %d", total, there))
	}
}

// Compiles notes that the go command compiles a package.
func (p *Progress) Compiles(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compiled++
	p.current = name
}

// Tick writes a line if the last one is ten seconds old.
func (p *Progress) Tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now().Sub(p.shown) < Every {
		return
	}
	switch {
	case !p.counted && p.modules == 0:
		p.write("still looking for what is compiled already")
	case !p.counted:
		p.write(fmt.Sprintf("downloading modules, %d so far, the last is %s", p.modules, p.current))
	case p.compiled >= p.total:
		p.write("all packages are compiled, linking")
	default:
		p.write(fmt.Sprintf("%d of %d packages compiled, the last is %s", p.compiled, p.total, p.current))
	}
}

// Done writes the last line.
func (p *Progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total == 0 {
		p.write("done, all packages were there")
	} else {
		p.write(fmt.Sprintf("done, packages compiled: %d", p.compiled))
	}
}

// write writes a line. The caller holds mu.
func (p *Progress) write(what string) {
	p.shown = p.now()
	fmt.Fprintf(p.out, "%s: %s", p.label, what)
	if elapsed := p.shown.Sub(p.begun).Round(time.Second); elapsed > 0 {
		fmt.Fprintf(p.out, " (%s)", elapsed)
	}
	fmt.Fprintln(p.out)
}
