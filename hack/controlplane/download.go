package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/latchkey-dev/latchkey/internal/controlplane/assets"
)

// downloader downloads a prebuilt control plane with setup-envtest, which verifies the checksum
// that its index states.
type downloader struct {
	index        string        // address of the index; empty for setup-envtest's own
	answerWithin time.Duration // the index must answer in this time
	patience     time.Duration // for the download
}

// download makes dir hold the programs. dir appears whole or not at all.
func (d downloader) download(ctx context.Context, program, dir string, out io.Writer) (err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := sweep(dir); err != nil {
		return err
	}
	store, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".downloading-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeAll(store)) }()
	run := func(timeout time.Duration, args ...string) (string, error) {
		args = append(args, "--bin-dir", store)
		if d.index != "" {
			args = append(args, "--index", d.index)
		}
		return output(ctx, timeout, store, program, args...)
	}
	versions := assets.Minor() + ".x"
	fmt.Fprintf(out, "Asking the index for versions, for %s at most\n", d.answerWithin)
	available, err := run(d.answerWithin, "list", versions)
	if err != nil {
		return err
	}
	if !strings.Contains(available, "available") {
		return fmt.Errorf("the index has none of Kubernetes %s for this platform", assets.Minor())
	}
	fmt.Fprintln(out, "Downloading it, about 60 MB")
	ticker, stopped, ended := time.NewTicker(10*time.Second), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		report(out, store, time.Now(), ticker.C, stopped)
	}()
	unpacked, err := run(d.patience, "use", versions, "--print", "path")
	ticker.Stop()
	close(stopped)
	<-ended
	if err != nil {
		return err
	}
	for _, program := range assets.Programs {
		if _, err := os.Stat(filepath.Join(unpacked, program)); err != nil {
			return fmt.Errorf("the archive lacks %s", program)
		}
	}
	if err := os.Chmod(unpacked, 0o755); err != nil { // setup-envtest makes it read-only, so it could not be moved
		return err
	}
	if err := os.Rename(unpacked, dir); err != nil {
		if found, findErr := assets.Find(); findErr == nil && found == dir {
			return nil // another process was faster
		}
		return err
	}
	return nil
}

// report writes at each tick how much of a download is in a directory, until it is stopped.
func report(out io.Writer, dir string, begun time.Time, ticks <-chan time.Time, stopped <-chan struct{}) {
	for {
		select {
		case now := <-ticks:
			size, unpacking := int64(0), false
			_ = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error { // files come and go
				if err == nil && !entry.IsDir() {
					if info, err := entry.Info(); err == nil {
						size += info.Size()
					}
					unpacking = unpacking || slices.Contains(assets.Programs, entry.Name())
				}
				return nil
			})
			what := "downloaded"
			if unpacking {
				what = "downloaded and unpacked"
			}
			fmt.Fprintf(out, "%d MB %s (%s)\n", size/1e6, what, now.Sub(begun).Round(time.Second))
		case <-stopped:
			return
		}
	}
}

// sweep removes what downloads left behind that were killed more than an hour ago.
func sweep(dir string) error {
	leftovers, err := filepath.Glob(dir + ".downloading-*")
	for _, leftover := range leftovers {
		if info, statErr := os.Stat(leftover); statErr == nil && time.Since(info.ModTime()) > time.Hour {
			err = errors.Join(err, removeAll(leftover))
		}
	}
	return err
}

// output runs a program, with scratch for its temporary files, and returns what it prints. The
// error has the last line of its log.
func output(ctx context.Context, timeout time.Duration, scratch, program string, args ...string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(limited, program, args...)
	command.Stdout, command.Stderr = &stdout, &stderr
	command.Env = append(os.Environ(), "TMPDIR="+scratch) // for the archive, which a killed setup-envtest leaves behind
	command.WaitDelay = time.Second
	err := command.Run()
	switch {
	case limited.Err() != nil && ctx.Err() == nil:
		return "", fmt.Errorf("no answer within %s", timeout)
	case err != nil:
		return "", fmt.Errorf("setup-envtest: %w: %s", err, lastLine(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// lastLine returns the last line of a log that is not empty, cut to a readable length.
func lastLine(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	const most = 300
	if len(line) > most {
		line = line[:most] + "…"
	}
	return line
}

// removeAll removes a directory with read-only directories in it.
func removeAll(dir string) error {
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}
