package report

import (
	"image/color"
	"path/filepath"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
)

// peers are the peers in the order, the colors and the marks of the plots.
var peers = []struct {
	name, label string
	color       color.Color
	mark        draw.GlyphDrawer
}{
	{peer.Latchkey, "latchkey", color.RGBA{R: 0x1b, G: 0x7f, B: 0x79, A: 0xff}, draw.CircleGlyph{}},
	{peer.ClusterAPI, "Cluster API", color.RGBA{R: 0xd9, G: 0x7a, B: 0x26, A: 0xff}, draw.BoxGlyph{}},
	{peer.Plain, "plain caches", color.RGBA{R: 0x8a, G: 0x8f, B: 0x98, A: 0xff}, draw.PyramidGlyph{}},
}

const kib = 1024.0

// Plot writes plots as SVG. It leaves out what was not measured.
func (r Results) Plot(folder string) error {
	if err := r.plotIdle(filepath.Join(folder, "identities.svg")); err != nil {
		return err
	}
	for file, title := range map[string]string{
		"empty_informer":    "Memory of an informer without objects",
		"same_objects_1000": "Heap per identity that sees 1,000 objects of 1 KiB",
	} {
		if err := r.plotBytes(filepath.Join(folder, file+".svg"), file, title); err != nil {
			return err
		}
	}
	return nil
}

// plotIdle plots what an idle identity costs, by the number of identities.
func (r Results) plotIdle(file string) error {
	c := newChart("Heap per idle identity")
	c.X.Label.Text, c.Y.Label.Text = "identities", "KiB"
	sizes := 0
	for _, one := range peers {
		var points plotter.XYs
		for _, at := range []struct {
			n        float64
			scenario string
		}{{10, "idle_heap_10"}, {100, "idle_heap_100"}, {1000, "idle_heap"}, {10_000, "idle_heap_10000"}} {
			if bytes, ok := r[one.name][at.scenario]["bytes"]; ok && bytes > 0 {
				points = append(points, plotter.XY{X: at.n, Y: bytes / kib})
			}
		}
		if len(points) == 0 {
			continue
		}
		sizes = max(sizes, len(points))
		if err := c.addLine(one.label, points, one.color, one.mark); err != nil {
			return err
		}
	}
	if sizes < 2 {
		return nil // no line
	}
	logarithmic(&c.X, 1)
	logarithmic(&c.Y, 1, 2, 5)
	return c.write(file)
}

// plotBytes plots the bytes of a scenario as bars.
func (r Results) plotBytes(file, scenario, title string) error {
	if r[peer.Latchkey][scenario] == nil {
		return nil
	}
	c := newChart(title)
	c.Y.Label.Text = "KiB"
	var labels []string
	for n, one := range peers {
		if err := c.addBar(n, r[one.name][scenario]["bytes"]/kib, one.color); err != nil {
			return err
		}
		labels = append(labels, one.label)
	}
	linear(&c.Y)
	c.NominalX(labels...)
	c.Y.Padding = 0
	c.X.Min, c.X.Max = -0.5, float64(len(peers))-0.5
	return c.write(file)
}
