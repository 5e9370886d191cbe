package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	spdxjson "github.com/spdx/tools-golang/json"
)

// helm is the program of "make bin/helm".
var helm, _ = filepath.Abs("../../bin/helm")

// clone clones the repository into a new folder, and builds a release there.
func clone(t *testing.T) (folder string) {
	t.Helper()
	g := NewWithT(t)
	folder = filepath.Join(t.TempDir(), "latchkey")
	out, err := exec.Command("git", "clone", "--quiet", "--local", "../..", folder).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	t.Chdir(folder)
	r := release{out: "dist", platforms: allPlatforms}
	g.Expect(r.build(t.Context())).To(Succeed())
	return folder
}

func sum(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	digest := sha256.Sum256(content)
	return hex.EncodeToString(digest[:])
}

// Two releases of one commit, in different folders, are the same bytes, and so are their images.
// Checksums and SBOMs are those of the files.
func TestRelease(t *testing.T) {
	g := NewWithT(t)
	var sums, digests []string
	var folder string
	for _, name := range []string{"one", "another place"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			folder = clone(t)
			content, err := os.ReadFile(filepath.Join(folder, "dist", "SHA256SUMS"))
			g.Expect(err).NotTo(HaveOccurred())
			sums = append(sums, string(content))
			lines := strings.Split(strings.TrimSpace(string(content)), "\n")
			g.Expect(lines).To(HaveLen(len(programs)*4*2 + 2))
			for _, line := range lines {
				digest, name, _ := strings.Cut(line, "  ")
				g.Expect(sum(t, filepath.Join(folder, "dist", name))).To(Equal(digest), name)
			}
			digests = append(digests, image(t, folder))
			for _, program := range programs {
				for platform := range strings.SplitSeq(allPlatforms, ",") {
					checkBinary(t, filepath.Join(folder, "dist"), program, platform)
				}
			}
			checkVersion(t, filepath.Join(folder, "dist", "latchkey-linux-amd64"))
			checkChart(t, filepath.Join(folder, "dist"))
		})
	}
	g.Expect(sums[0]).To(Equal(sums[1]))
	g.Expect(digests[0]).To(Equal(digests[1]))
}

// image builds the image and returns its digest.
func image(t *testing.T, folder string) string {
	t.Helper()
	g := NewWithT(t)
	store := t.TempDir()
	buildah := func(args ...string) string {
		cmd := exec.Command("buildah", append([]string{"--storage-driver", "vfs", "--root", store + "/root", "--runroot",
			store + "/run"}, args...)...)
		cmd.Dir = folder
		var problems strings.Builder
		cmd.Stderr = &problems
		out, err := cmd.Output()
		g.Expect(err).NotTo(HaveOccurred(), "buildah, of Debian's package of that name: %s", problems.String())
		return strings.TrimSpace(string(out))
	}
	buildah("build", "--isolation", "chroot", "--timestamp", "1700000000", "--build-arg", "TARGETARCH=amd64",
		"--platform", "linux/amd64", "--no-cache", "-t", "latchkey:test", ".")
	config := buildah("inspect", "--type", "image", "--format", "{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}}",
		"latchkey:test")
	g.Expect(config).To(Equal("65532:65532 [/latchkey]"))
	return buildah("images", "--no-trunc", "--quiet", "latchkey:test")
}

// checkBinary checks that a binary is the program for its platform, and that its SBOM lists each of
// its modules.
func checkBinary(t *testing.T, dist, program, platform string) {
	t.Helper()
	g := NewWithT(t)
	goos, goarch, _ := strings.Cut(platform, "/")
	name := filepath.Join(dist, program+"-"+goos+"-"+goarch)
	info, err := buildinfo.ReadFile(name)
	g.Expect(err).NotTo(HaveOccurred())
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	g.Expect(info.Path).To(HaveSuffix("/cmd/" + program))
	g.Expect(settings).To(And(HaveKeyWithValue("GOOS", goos), HaveKeyWithValue("GOARCH", goarch),
		HaveKeyWithValue("CGO_ENABLED", "0"), HaveKeyWithValue("-trimpath", "true")), name)

	file, err := os.Open(name + ".spdx.json")
	g.Expect(err).NotTo(HaveOccurred())
	defer file.Close()
	document, err := spdxjson.Read(file)
	g.Expect(err).NotTo(HaveOccurred())
	packages := map[string]string{}
	for _, p := range document.Packages {
		packages[p.PackageName] = p.PackageVersion
	}
	g.Expect(len(info.Deps)).To(BeNumerically(">", 10))
	for _, module := range info.Deps {
		g.Expect(packages).To(HaveKeyWithValue(module.Path, module.Version))
	}
	g.Expect(packages).To(HaveKey("stdlib"))
	g.Expect(document.Relationships).To(HaveLen(len(document.Packages)))
	g.Expect(document.Packages[0].PackageChecksums[0].Value).To(Equal(sum(t, name)))
}

// checkVersion runs the binary, which is static, has the version of the release, and no path of the
// machine.
func checkVersion(t *testing.T, binary string) {
	t.Helper()
	g := NewWithT(t)
	out, err := exec.Command(binary, "version").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred())
	chart, err := readChart(chartDir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(out)).To(HavePrefix("latchkey v" + chart.Version + ", built with go"))
	content, err := os.ReadFile(binary)
	g.Expect(err).NotTo(HaveOccurred())
	dir, err := os.Getwd()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Contains(string(content), dir)).To(BeFalse())
	g.Expect(strings.Contains(string(content), "ld-linux")).To(BeFalse(), "it needs no dynamic linker")
}

// checkChart checks that Helm renders the archive as it renders the folder, and that the archive
// has each file of the folder.
func checkChart(t *testing.T, dist string) {
	t.Helper()
	g := NewWithT(t)
	chart, err := readChart(chartDir)
	g.Expect(err).NotTo(HaveOccurred())
	archive := filepath.Join(dist, "latchkey-"+chart.Version+".tgz")
	render := func(chart string) string {
		cmd := exec.Command(helm, "template", "latchkey", chart, "--kube-version", "1.36", "--set",
			"stateAPI.enabled=true,metrics.dashboard.enabled=true,metrics.prometheusRule.enabled=true")
		var problems strings.Builder
		cmd.Stderr = &problems
		out, err := cmd.Output()
		g.Expect(err).NotTo(HaveOccurred(), problems.String())
		return string(out)
	}
	g.Expect(render(archive)).To(Equal(render(chartDir)))
	extracted := t.TempDir()
	out, err := exec.Command("tar", "-xzf", archive, "-C", extracted).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	out, err = exec.Command("diff", "--recursive", chartDir, filepath.Join(extracted, "latchkey")).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
}

func TestNotes(t *testing.T) {
	g := NewWithT(t)
	const changelog = "# Changelog\n\n## Unreleased\n\nnew\n\n" +
		"## 1.2.0 (2026-01-02)\n\nold\n\n### Added\n\n- a\n\n## 1.1.0\n"
	g.Expect(notesOf(changelog, "v1.2.0")).To(Equal("# latchkey v1.2.0\n\nold\n\n### Added\n\n- a\n"))
	g.Expect(notesOf(changelog, "v1.3.0")).To(Equal("# latchkey v1.3.0\n\nnew\n"))
	_, err := notesOf("# Changelog\n", "v1.3.0")
	g.Expect(err).To(MatchError(ContainSubstring("neither a section 1.3.0 nor Unreleased")))
}

// A version that is no version, or not the chart's, is refused before anything is removed.
func TestVersions(t *testing.T) {
	g := NewWithT(t)
	t.Chdir("../..")
	for version, want := range map[string]string{"1.2.3": "not of the form", "v99.0.0": "want 99.0.0 in both"} {
		dir := t.TempDir()
		err := (&release{version: version, out: dir, platforms: allPlatforms}).build(t.Context())
		g.Expect(err).To(MatchError(ContainSubstring(want)))
		g.Expect(dir).To(BeADirectory())
	}
	g.Expect((&release{version: "v99.0.0"}).checkModule(t.Context(), "adapters/clusterapi")).
		To(MatchError(ContainSubstring("mod edit -require=github.com/latchkey-dev/latchkey@v99.0.0")))
}
