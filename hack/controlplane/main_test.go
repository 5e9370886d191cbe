package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/controlplane/assets"
)

// setup-envtest itself, built once.
var setupEnvtest = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "latchkey-ensure-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	return setUpEnvtest(context.Background(), "../..", filepath.Join(dir, "setup-envtest"))
})

var builtIn string // the directory of setup-envtest, once it is built

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(builtIn)
	os.Exit(code)
}

// machine is a machine without a control plane.
type machine struct {
	ensurer
	built [][]string
	log   bytes.Buffer
}

func newMachine(t *testing.T, index string) *machine {
	t.Helper()
	program, err := setupEnvtest() // before HOME changes, because the go command needs its caches
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	t.Setenv("XDG_DATA_HOME", filepath.Join(home, "data"))
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(assets.Env, "")
	t.Setenv("PATH", t.TempDir())
	m := &machine{}
	m.ensurer = ensurer{
		setUp: func(context.Context) (string, error) { return program, nil },
		build: func(_ context.Context, dir string, programs ...string) error {
			m.built = append(m.built, programs)
			for _, program := range programs {
				write(t, dir, program)
			}
			return nil
		},
		download: downloader{index: index, answerWithin: 10 * time.Second, patience: time.Minute},
		out:      &m.log,
	}
	return m
}

func write(t *testing.T, dir, program string) {
	g := NewWithT(t)
	g.Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, program), nil, 0o755)).To(Succeed())
}

// nothingLeft checks that no part of a download stays.
func nothingLeft(t *testing.T) {
	t.Helper()
	dir, err := assets.PrebuiltDir()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(filepath.Glob(dir + ".downloading-*")).To(BeEmpty())
	NewWithT(t).Expect(os.ReadDir(os.Getenv("TMPDIR"))).To(BeEmpty())
}

// newIndex plays the servers that setup-envtest downloads from: an index, and one archive with the
// programs. sum changes the checksum in the index.
func newIndex(t *testing.T, sum func(string) string, programs ...string) string {
	t.Helper()
	g := NewWithT(t)
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	files := tar.NewWriter(compressed)
	for _, program := range programs {
		content := []byte("#!/bin/sh\n")
		g.Expect(files.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg,
			Name:     "controller-tools/envtest/" + program,
			Mode:     0o755,
			Size:     int64(len(content)),
		})).To(Succeed())
		_, err := files.Write(content)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(files.Close()).To(Succeed())
	g.Expect(compressed.Close()).To(Succeed())
	digest := sha512.Sum512(archive.Bytes())
	name := fmt.Sprintf("envtest-v%s.9-%s-%s.tar.gz", assets.Minor(), runtime.GOOS, runtime.GOARCH)
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/index.yaml" {
			fmt.Fprintf(w, "releases:\n  v%s.9:\n    %s:\n      hash: %s\n      selfLink: %s/archive\n", assets.Minor(), name,
				sum(hex.EncodeToString(digest[:])), "http://"+server.Listener.Addr().String())
			return
		}
		_, _ = w.Write(archive.Bytes())
	})
	server.Start()
	t.Cleanup(server.Close)
	return server.URL + "/index.yaml"
}

func same(sum string) string { return sum }

// A machine that can download builds kube-controller-manager only, and only when it is needed.
func TestDownload(t *testing.T) {
	g := NewWithT(t)
	m := newMachine(t, newIndex(t, same, append(assets.Programs, "more")...))
	dir, err := m.ensure(t.Context(), false)
	g.Expect(err).NotTo(HaveOccurred(), m.log.String())
	g.Expect(assets.PrebuiltDir()).To(Equal(dir))
	g.Expect(m.built).To(BeEmpty())
	g.Expect(m.log.String()).To(ContainSubstring("Downloaded in"))
	m.log.Reset()
	g.Expect(m.ensure(t.Context(), true)).To(Equal(dir), "the download is there")
	g.Expect(m.log.String()).To(Equal("Control plane: from the cache, " + dir + "\n"))
	g.Expect(m.built).To(Equal([][]string{{assets.ControllerManager}}))
	g.Expect(m.ensure(t.Context(), true)).To(Equal(dir))
	g.Expect(m.built).To(HaveLen(1))
	nothingLeft(t)
}

// Whatever prevents the download, the programs are built, with a line that says why and how long
// that takes. An archive with another checksum is not used.
func TestBuildInstead(t *testing.T) {
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hangs.Close)
	refuses := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(refuses.Close)
	for name, tc := range map[string]struct{ index, why string }{
		"no answer":        {hangs.URL, "no answer within 200ms"},
		"a no":             {refuses.URL, "404 Not Found"},
		"another checksum": {newIndex(t, func(string) string { return "abc" }, assets.Programs...), "checksum mismatch"},
		"half an archive":  {newIndex(t, same, "etcd"), "the archive lacks kube-apiserver"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			m := newMachine(t, tc.index)
			if tc.index == hangs.URL {
				m.download.answerWithin = 200 * time.Millisecond
			}
			dir, err := m.ensure(t.Context(), false)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(assets.BuiltDir()).To(Equal(dir))
			g.Expect(m.built).To(Equal([][]string{assets.Programs}))
			g.Expect(m.log.String()).To(And(ContainSubstring("No prebuilt control plane: "), ContainSubstring(tc.why),
				ContainSubstring("about 5 minutes")))
			prebuilt, err := assets.PrebuiltDir()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(prebuilt).NotTo(BeADirectory(), "nothing of the archive is used")
			nothingLeft(t)
		})
	}
}

// A download that takes long says how much is there.
func TestReport(t *testing.T) {
	g := NewWithT(t)
	dir, begun := t.TempDir(), time.Unix(0, 0)
	ticks, stopped, ended := make(chan time.Time), make(chan struct{}), make(chan struct{})
	var out bytes.Buffer
	go func() {
		defer close(ended)
		report(&out, dir, begun, ticks, stopped)
	}()
	g.Expect(os.WriteFile(filepath.Join(dir, "archive"), make([]byte, 3_100_000), 0o644)).To(Succeed())
	ticks <- begun.Add(10 * time.Second)
	ticks <- begun.Add(20 * time.Second) // the line before is written
	write(t, filepath.Join(dir, "k8s"), "etcd")
	ticks <- begun.Add(30 * time.Second)
	close(stopped)
	<-ended
	g.Expect(out.String()).To(HavePrefix("3 MB downloaded (10s)\n3 MB downloaded"))
	g.Expect(out.String()).To(HaveSuffix("3 MB downloaded and unpacked (30s)\n"))
}

// A person who stops the command does not want a build instead.
func TestInterrupted(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	t.Cleanup(hangs.Close)
	m := newMachine(t, hangs.URL)
	_, err := m.ensure(ctx, true)
	g.Expect(err).To(MatchError(context.Canceled))
	g.Expect(m.built).To(BeEmpty())
	nothingLeft(t)
}
