package compile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Program is what to compile.
type Program struct {
	Dir     string   // a folder of the module
	Package string   // as the go command takes it
	File    string   // to write
	Flags   []string // of go build
	Env     []string // in addition to the environment
}

// Run compiles a program. The error has what the go command says.
func Run(ctx context.Context, p *Progress, program Program) error {
	stop := ticks(p)
	defer stop()
	var list bytes.Buffer
	args := append([]string{"list", "-deps", "-f", "{{.Stale}} {{.StaleReason}}"}, program.Flags...)
	if err := program.run(ctx, p, &list, append(args, program.Package)...); err != nil {
		return err
	}
	p.Begin(Count(list.String()))
	args = append([]string{"build", "-v", "-o", program.File}, program.Flags...)
	if err := program.run(ctx, p, nil, append(args, program.Package)...); err != nil {
		return err
	}
	p.Done()
	return nil
}

// ticks writes a line from time to time, until it is stopped.
func ticks(p *Progress) (stop func()) {
	ticker, stopped, ended := time.NewTicker(time.Second), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ticker.C:
				p.Tick()
			case <-stopped:
				return
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(stopped)
		<-ended
	}
}

// Count counts the packages of a list with a line for each: whether the package is stale, and why.
func Count(list string) (stale, there int) {
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "true") && !strings.Contains(line, "available in build cache") {
			stale++
		} else {
			there++
		}
	}
	return stale, there
}

// run runs the go command, and notes what it downloads and compiles.
func (program Program) run(ctx context.Context, p *Progress, stdout io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Env = program.Dir, stdout, append(os.Environ(), program.Env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	said := Follow(stderr, p)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go %s: %w", args[0], errors.Join(err, errors.New(said)))
	}
	return nil
}

// Follow reads what the go command says with -v, and returns what is neither a download nor the
// name of a package.
func Follow(stderr io.Reader, p *Progress) (said string) {
	var rest []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		line := lines.Text()
		if module, ok := strings.CutPrefix(line, "go: downloading "); ok {
			p.Downloads(module)
		} else if line != "" && !strings.ContainsAny(line, " :") {
			p.Compiles(line)
		} else {
			rest = append(rest, line)
		}
	}
	return strings.Join(rest, "\n")
}
