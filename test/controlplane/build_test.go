package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkey-dev/latchkey/test/controlplane/compile"
)

// childEnv makes the test binary build into that directory and hang in the middle, for
// TestKilledBuild.
const childEnv = "CONTROLPLANE_TEST_HANG_IN"

func TestMain(m *testing.M) {
	if dst := os.Getenv(childEnv); dst != "" {
		b := newBuilder(func(_ context.Context, program, file string, _ *compile.Progress) error {
			if err := os.WriteFile(file, []byte("half"), 0o755); err != nil || program == "a" {
				return err
			}
			os.Stdout.WriteString("hanging\n")
			select {}
		})
		if err := b.build(context.Background(), dst, []string{"a", "b"}); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func newBuilder(compile func(context.Context, string, string, *compile.Progress) error) builder {
	return builder{compile: compile, out: &bytes.Buffer{}, now: time.Now}
}

func writes(count *atomic.Int32) func(context.Context, string, string, *compile.Progress) error {
	return func(_ context.Context, program, file string, progress *compile.Progress) error {
		count.Add(1)
		progress.Begin(1, 2)
		progress.Compiles(program)
		progress.Done()
		return os.WriteFile(file, []byte(program), 0o755)
	}
}

// expectWhole checks that dst has the programs and that nothing half-made lies beside it.
func expectWhole(t *testing.T, dst string, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if content, err := os.ReadFile(filepath.Join(dst, program)); err != nil || string(content) != program {
			t.Errorf("%s: %q, %v", program, content, err)
		}
	}
	expectBeside(t, dst, filepath.Base(dst), filepath.Base(dst)+".lock")
}

func expectBeside(t *testing.T, dst string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(dst))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("beside %s lie %q, want %q", dst, names, want)
	}
}

func TestBuildOnce(t *testing.T) {
	dst := filepath.Join(t.TempDir(), "cache", "v1")
	var compiled atomic.Int32
	b := newBuilder(writes(&compiled))
	for range 2 {
		if err := b.build(t.Context(), dst, []string{"a", "b"}); err != nil {
			t.Fatal(err)
		}
	}
	if compiled.Load() != 2 {
		t.Errorf("compiled %d times, want each of 2 programs once", compiled.Load())
	}
	expectWhole(t, dst, "a", "b")
	said := b.out.(*bytes.Buffer).String()
	for _, progress := range []string{"once per machine", "[1/2] a: packages to compile: 1",
		"[2/2] b: done, packages compiled: 1"} {
		if !strings.Contains(said, progress) {
			t.Errorf("it did not say %q but %q", progress, said)
		}
	}
}

func TestConcurrentBuilds(t *testing.T) {
	dst := filepath.Join(t.TempDir(), "v1")
	var compiled atomic.Int32
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			if err := newBuilder(writes(&compiled)).build(t.Context(), dst, []string{"a", "b"}); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if compiled.Load() != 2 {
		t.Errorf("compiled %d times, want each of 2 programs once", compiled.Load())
	}
	expectWhole(t, dst, "a", "b")
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	dst := filepath.Join(t.TempDir(), "v1")
	broken := errors.New("does not compile")
	err := newBuilder(func(_ context.Context, program, file string, _ *compile.Progress) error {
		if program == "b" {
			return broken
		}
		return os.WriteFile(file, nil, 0o755)
	}).build(t.Context(), dst, []string{"a", "b"})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "building b") {
		t.Errorf("got %v", err)
	}
	expectBeside(t, dst, "v1.lock")
	var compiled atomic.Int32
	if err := newBuilder(writes(&compiled)).build(t.Context(), dst, []string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	expectWhole(t, dst, "a", "b")
}

// A build that is killed leaves something beside dst, never in its place; the next sweeps it away.
func TestKilledBuild(t *testing.T) {
	dst := filepath.Join(t.TempDir(), "v1")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), childEnv+"="+dst)
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	// A second build waits for the first, and gives up when its context ends.
	impatient, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var compiled atomic.Int32
	waiting := newBuilder(writes(&compiled))
	if err := waiting.build(impatient, dst, []string{"a", "b"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if said := waiting.out.(*bytes.Buffer).String(); !strings.Contains(said, "Another process builds") {
		t.Errorf("it waited without a word: %q", said)
	}

	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	if _, err := os.Stat(dst); !os.IsNotExist(err) {
		t.Fatalf("half a build is in place: %v", err)
	}
	if leftovers, _ := filepath.Glob(dst + ".building-*"); len(leftovers) != 1 {
		t.Fatalf("the killed build left %q; this test would prove nothing", leftovers)
	}
	if err := newBuilder(writes(&compiled)).build(t.Context(), dst, []string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	expectWhole(t, dst, "a", "b")
}

func TestKubernetesVersion(t *testing.T) {
	if !strings.HasPrefix(kubernetesVersion, "v1.") {
		t.Errorf("go.mod says %q", kubernetesVersion)
	}
}
