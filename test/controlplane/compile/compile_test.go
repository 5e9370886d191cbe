package compile

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clock is a time that tests move.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func (c *clock) after(d time.Duration) { c.Time = c.Add(d) }

func expect(t *testing.T, out *bytes.Buffer, want string) {
	t.Helper()
	if got := out.String(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	out.Reset()
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	c := &clock{time.Unix(0, 0)}
	p := NewProgress("[2/3] etcd", &out, c.now)
	expect(t, &out, "[2/3] etcd: looking for what is compiled already\n")
	c.after(Every - time.Second)
	p.Tick()
	expect(t, &out, "")
	c.after(time.Second)
	p.Tick()
	p.Tick()
	expect(t, &out, "[2/3] etcd: still looking for what is compiled already (10s)\n")

	Follow(strings.NewReader("go: downloading example.com/a v1.0.0\ngo: downloading example.com/b v1.2.0\n"), p)
	c.after(Every)
	p.Tick()
	expect(t, &out, "[2/3] etcd: downloading modules, 2 so far, the last is example.com/b v1.2.0 (20s)\n")

	p.Begin(Count("false \nfalse \ntrue not installed but available in build cache\n" +
		"true stale dependency: a\ntrue build ID mismatch\n"))
	expect(t, &out, "[2/3] etcd: packages to compile: 2, there: 3 (20s)\n")
	if said := Follow(strings.NewReader("example.com/a\n# example.com/b\nb.go:1:1: undefined\n"), p); said !=
		"# example.com/b\nb.go:1:1: undefined" {
		t.Errorf("got %q", said)
	}
	c.after(Every)
	p.Tick()
	expect(t, &out, "[2/3] etcd: 1 of 2 packages compiled, the last is example.com/a (30s)\n")
	p.Compiles("example.com/b")
	c.after(Every)
	p.Tick()
	expect(t, &out, "[2/3] etcd: all packages are compiled, linking (40s)\n")
	c.after(time.Second)
	p.Done()
	expect(t, &out, "[2/3] etcd: done, packages compiled: 2 (41s)\n")
}

// Run compiles a module of one package, and finds it compiled the next time. An error has what the
// compiler says.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/one\n\ngo 1.26.0\n")
	write("other.go", "package main\n\n// "+dir+"\n")
	program := Program{Dir: dir, Package: ".", File: filepath.Join(dir, "one"), Env: []string{"GOWORK=off", "GOFLAGS="}}
	run := func(source string) (string, error) {
		write("main.go", source)
		var out bytes.Buffer
		c := &clock{time.Unix(0, 0)}
		err := Run(context.Background(), NewProgress("one", &out, c.now), program)
		return out.String(), err
	}
	first, err := run("package main\n\nfunc main() { println(`" + dir + "`) }\n")
	if err != nil || !strings.Contains(first, "to compile") || !strings.Contains(first, "done, packages compiled: ") {
		t.Errorf("%v: %s", err, first)
	}
	if _, err := os.Stat(program.File); err != nil {
		t.Error(err)
	}
	again, err := run("package main\n\nfunc main() { println(`" + dir + "`) }\n")
	if err != nil || !strings.HasSuffix(again, "already\none: done, all packages were there\n") {
		t.Errorf("%v: %s", err, again)
	}
	if _, err := run("package main\n\nfunc main() { undefined() }\n"); err == nil ||
		!strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("got %v", err)
	}
}
