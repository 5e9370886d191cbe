package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// retargeted runs this program with the arguments in a copy of its module whose go.mod requires
// another version of Kubernetes, such as v1.34.4.
func retargeted(ctx context.Context, version string, args ...string) (err error) {
	dir, err := os.MkdirTemp("", "latchkey-controlplane-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		return err
	}
	content, err := kubernetesGoMod(ctx, version)
	if err != nil {
		return err
	}
	newMod, err := goModOf(version, goMod, content)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(newMod), 0o644); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, "go.sum")); err != nil {
		return err
	}
	for _, step := range [][]string{{"mod", "tidy"}, append([]string{"run", "."}, args...)} {
		cmd := exec.CommandContext(ctx, "go", step...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		var said bytes.Buffer
		cmd.Stderr = &said
		if step[0] == "run" {
			cmd.Stderr = os.Stderr
		}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(step, " "), err, &said)
		}
	}
	return nil
}

// kubernetesGoMod returns the go.mod of a version of k8s.io/kubernetes.
func kubernetesGoMod(ctx context.Context, version string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	out, err := cmd.Output()
	var downloaded struct{ GoMod, Error string }
	if jsonErr := json.Unmarshal(out, &downloaded); jsonErr != nil {
		return "", errors.Join(err, jsonErr)
	}
	if downloaded.Error != "" {
		return "", errors.New(downloaded.Error)
	}
	content, err := os.ReadFile(downloaded.GoMod)
	return string(content), err
}

var (
	versionForm = regexp.MustCompile(`^v1(\.[0-9]+\.[0-9]+)$`)
	// ownRequire matches a direct requirement of our go.mod.
	ownRequire = regexp.MustCompile(`(?m)^\t(\S+) (v\S+)$`)
	// staging matches a module that Kubernetes has in its own repository, and publishes too.
	staging = regexp.MustCompile(`(?m)^\t(k8s\.io/\S+) => \./staging/`)
)

// goModOf returns our go.mod for another version of Kubernetes, from ours and that of Kubernetes.
// What Kubernetes requires comes from its own go.mod.
func goModOf(version, ours, kubernetes string) (string, error) {
	form := versionForm.FindStringSubmatch(version)
	modules := staging.FindAllStringSubmatch(kubernetes, -1)
	if form == nil || len(modules) == 0 {
		return "", fmt.Errorf("%q is no version of Kubernetes, such as v1.34.4", version)
	}
	published := "v0" + form[1]
	var mod strings.Builder
	before, rest, _ := strings.Cut(ours, "require (")
	direct, _, _ := strings.Cut(rest, ")")
	mod.WriteString(before + "require (\n")
	for _, require := range ownRequire.FindAllStringSubmatch(direct, -1) {
		switch name := require[1]; {
		case name == "k8s.io/kubernetes":
			require[2] = version
		case strings.HasPrefix(name, "k8s.io/"):
			require[2] = published
		}
		fmt.Fprintf(&mod, "\t%s %s\n", require[1], require[2])
	}
	mod.WriteString(")\n\nreplace (\n")
	for _, module := range modules {
		fmt.Fprintf(&mod, "\t%s => %s %s\n", module[1], module[1], published)
	}
	return mod.String() + ")\n", nil
}
