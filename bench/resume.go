package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/bench/internal/stage"
)

// result is what one run has measured.
type result struct {
	Build  string
	N      int
	Values stage.Values
}

// build identifies this program: its commit or, with uncommitted changes, a name that no other
// process has, so that its results are not used again.
func build() string {
	revision, clean := "", false
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value
			case "vcs.modified":
				clean = s.Value == "false"
			}
		}
	}
	if !clean {
		return revision + " with changes, at " + time.Now().Format(time.RFC3339Nano)
	}
	return revision
}

func (s settings) file(r run, peerName string) string {
	return filepath.Join(s.results, fmt.Sprintf("%s-%s-%d.json", r.stage, peerName, r.round+1))
}

// known returns what a run of this build has measured before.
func (s settings) known(r run, peerName string) (stage.Values, bool) {
	text, err := os.ReadFile(s.file(r, peerName))
	if err != nil {
		return nil, false
	}
	var found result
	if json.Unmarshal(text, &found) != nil || found.Build != s.build || found.N != r.n {
		return nil, false
	}
	return found.Values, true
}

// remember writes what a run has measured.
func (s settings) remember(r run, peerName string, values stage.Values) error {
	text, err := json.MarshalIndent(result{s.build, r.n, values}, "", "\t")
	if err != nil {
		return errors.WithStack(err)
	}
	return errors.WithStack(os.WriteFile(s.file(r, peerName), append(text, '\n'), 0o600))
}
