package machinetest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the effects of the machine into the files under testdata")

// RunScenarios plays the scenarios in testdata/*.txt, each as a subtest. play returns the scenario
// with the effects that the machine has now; they must be those of the file. With -update the file
// is written instead.
func RunScenarios(t *testing.T, play func(t *testing.T, script []byte) []byte) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, want)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Updating reports whether -update is set: files under testdata and diagrams are to be written.
func Updating() bool { return *update }
