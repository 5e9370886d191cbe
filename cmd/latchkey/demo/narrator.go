package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/pkg/errors"
)

// narrator prints each action and each observation of the tour as one line.
type narrator struct {
	out      io.Writer
	patience time.Duration
}

func (n *narrator) line(format string, args ...any) { fmt.Fprintf(n.out, format+"\n", args...) }

func (n *narrator) did(format string, args ...any) { n.line("      did   "+format, args...) }
func (n *narrator) saw(format string, args ...any) { n.line("      saw   "+format, args...) }

// until polls look every 50 ms until look reports done. Every 2 s until prints the last
// observation. After patience, until returns an error that names the expected result and the last
// observation. When ctx is done, until returns the error of ctx.
func (n *narrator) until(ctx context.Context, expected string, look func() (done bool, seen string)) error {
	start := time.Now()
	poll, progress := time.NewTicker(50*time.Millisecond), time.NewTicker(2*time.Second)
	defer poll.Stop()
	defer progress.Stop()
	limit := time.NewTimer(n.patience)
	defer limit.Stop()
	for {
		done, seen := look()
		if done {
			return nil
		}
		select {
		case <-poll.C:
		case <-progress.C:
			n.line("      wait  %s: %s, %s", expected, seen, since(start))
		case <-limit.C:
			return errors.Errorf("expected %s within %s; last seen: %s", expected, n.patience, seen)
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "waiting for %s", expected)
		}
	}
}

func since(start time.Time) time.Duration { return time.Since(start).Round(time.Millisecond) }
