package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"
)

// programs are the folders of cmd/ that a release has.
var programs = []string{"latchkey", "kubectl-latchkey"}

// modules are the folders of what has a tag of its own: users get these modules by themselves.
var modules = []string{"adapters/clusterapi"}

// allPlatforms are those of a release.
const allPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "version of the release, as v1.2.3; empty means that of the chart")
	flag.StringVar(&r.out, "out", "dist", "folder for the files; what it has is removed")
	flag.StringVar(&r.platforms, "platforms", allPlatforms, "comma-separated GOOS/GOARCH")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := r.build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

// release is what one run makes.
type release struct {
	version, out string
	platforms    string    // comma-separated
	created      time.Time // of the commit
	commit       string
}

var versionPattern = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9a-z.]+)?$`)

func (r *release) build(ctx context.Context) error {
	chart, err := readChart(chartDir)
	if err != nil {
		return err
	}
	if r.version == "" {
		r.version = "v" + chart.Version
	}
	if !versionPattern.MatchString(r.version) {
		return errors.Errorf("-version=%s is not of the form v1.2.3", r.version)
	}
	if "v"+chart.Version != r.version || "v"+chart.AppVersion != r.version {
		return errors.Errorf("%s/Chart.yaml has version %s and appVersion %s, want %s in both", chartDir, chart.Version,
			chart.AppVersion, strings.TrimPrefix(r.version, "v"))
	}
	for _, module := range modules {
		if err := r.checkModule(ctx, module); err != nil {
			return err
		}
	}
	if err := r.readCommit(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return errors.WithStack(err)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil { //nolint:gosec // files for everybody
		return errors.WithStack(err)
	}
	for _, program := range programs {
		for platform := range strings.SplitSeq(r.platforms, ",") {
			goos, goarch, ok := strings.Cut(platform, "/")
			if !ok {
				return errors.Errorf("-platforms: %q is not GOOS/GOARCH", platform)
			}
			fmt.Fprintf(os.Stderr, "release: building %s for %s\n", program, platform)
			if err := r.binary(ctx, program, goos, goarch); err != nil {
				return err
			}
		}
	}
	if err := r.packageChart(chart); err != nil {
		return err
	}
	if err := r.notes(); err != nil {
		return err
	}
	return r.checksums()
}

// checkModule returns an error if a module does not ask for this version of latchkey. Within the
// repository it is replaced; for users nothing is.
func (r *release) checkModule(ctx context.Context, module string) error {
	const latchkey = "github.com/latchkey-dev/latchkey"
	out, err := exec.CommandContext(ctx, "go", "-C", module, "list", "-m", "-f", "{{.Version}}", latchkey).Output()
	if err != nil {
		return errors.Wrapf(err, "go list -m in %s", module)
	}
	if version := strings.TrimSpace(string(out)); version != r.version {
		return errors.Errorf("%s/go.mod requires %s %s, want %s: go -C %s mod edit -require=%s@%s", module, latchkey, version,
			r.version, module, latchkey, r.version)
	}
	return nil
}

// readCommit reads the commit and its time.
func (r *release) readCommit(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%H %ct").Output()
	if err != nil {
		return errors.Wrap(err, "git log")
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	r.commit, r.created = commit, time.Unix(unix, 0).UTC()
	return errors.WithStack(err)
}

// binary builds a program, and the SBOM of what is in it.
func (r *release) binary(ctx context.Context, program, goos, goarch string) error {
	name := fmt.Sprintf("%s-%s-%s", program, goos, goarch)
	file := filepath.Join(r.out, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -buildid= -X main.release="+r.version, "-o", file, "./cmd/"+program)
	cmd.Env = append(os.Environ(), // what decides the bytes
		"CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOFLAGS=-mod=readonly",
		"GOAMD64=v1", "GOARM64=v8.0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return errors.Wrapf(err, "building %s", name)
	}
	return r.sbom(name, file)
}

// notes writes the part of CHANGELOG.md about this version, or else about what is not released yet.
func (r *release) notes() error {
	content, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return errors.WithStack(err)
	}
	notes, err := notesOf(string(content), r.version)
	if err != nil {
		return err
	}
	return errors.WithStack(os.WriteFile(filepath.Join(r.out, "NOTES.md"), []byte(notes), 0o644)) //nolint:gosec // public
}

// notesOf returns the section of a version, or else the section Unreleased.
func notesOf(changelog, version string) (string, error) {
	sections := strings.Split("\n"+changelog, "\n## ")
	for _, title := range []string{strings.TrimPrefix(version, "v"), "Unreleased"} {
		for _, section := range sections[1:] {
			if heading, body, _ := strings.Cut(section, "\n"); heading == title || strings.HasPrefix(heading, title+" ") {
				return "# latchkey " + version + "\n" + strings.TrimRight(body, "\n") + "\n", nil
			}
		}
	}
	return "", errors.Errorf("CHANGELOG.md has neither a section %s nor Unreleased", strings.TrimPrefix(version, "v"))
}

// checksums writes the SHA-256 of each file, as sha256sum reads it.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return errors.WithStack(err)
	}
	var lines []string
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(r.out, entry.Name()))
		if err != nil {
			return errors.WithStack(err)
		}
		sum := sha256.Sum256(content)
		lines = append(lines, hex.EncodeToString(sum[:])+"  "+entry.Name()+"\n")
	}
	slices.Sort(lines)
	return errors.WithStack(os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), //nolint:gosec // public
		[]byte(strings.Join(lines, "")), 0o644))
}
