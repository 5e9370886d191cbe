package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/pkg/errors"
	"sigs.k8s.io/yaml"
)

const chartDir = "deploy/helm/latchkey"

// chart is what a Chart.yaml says.
type chart struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	AppVersion string `json:"appVersion"`
}

func readChart(dir string) (c chart, err error) {
	content, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err != nil {
		return c, errors.WithStack(err)
	}
	return c, errors.Wrap(yaml.Unmarshal(content, &c), "reading Chart.yaml")
}

// packageChart writes the chart as an archive that Helm installs. Helm's own archives have the time
// at which they were made.
func (r *release) packageChart(c chart) error {
	var archive bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&archive, gzip.BestCompression)
	if err != nil {
		return errors.WithStack(err)
	}
	files := tar.NewWriter(compressed)
	err = fs.WalkDir(os.DirFS(chartDir), ".", func(name string, entry fs.DirEntry, err error) error { // in lexical order
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(chartDir, name))
		if err != nil {
			return errors.WithStack(err)
		}
		if err := files.WriteHeader(&tar.Header{
			Name:    path.Join(c.Name, name),
			Mode:    0o644,
			Size:    int64(len(content)),
			ModTime: r.created,
			Format:  tar.FormatPAX,
		}); err != nil {
			return errors.WithStack(err)
		}
		_, err = files.Write(content)
		return errors.WithStack(err)
	})
	if err != nil {
		return err
	}
	if err := files.Close(); err != nil {
		return errors.WithStack(err)
	}
	if err := compressed.Close(); err != nil {
		return errors.WithStack(err)
	}
	name := filepath.Join(r.out, c.Name+"-"+c.Version+".tgz")
	return errors.WithStack(os.WriteFile(name, archive.Bytes(), 0o644)) //nolint:gosec // public
}
