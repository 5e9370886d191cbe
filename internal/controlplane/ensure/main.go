// Command ensure prints the directory with the control plane's programs, and builds the programs
// first if no directory has them. Run the command from the root of the repository, or run "make
// controlplane".
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/latchkey-dev/latchkey/internal/controlplane/assets"
)

func main() {
	dir, err := ensure()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ensure:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

func ensure() (string, error) {
	dir, err := assets.Find()
	if !errors.Is(err, assets.ErrMissing) || os.Getenv(assets.Env) != "" {
		return dir, err
	}
	dir, err = assets.Dir()
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "run", "-C", "test/controlplane", ".", "-o", dir)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("building the control plane: %w", err)
	}
	return assets.Find()
}
