package report

import (
	"image/color"
	"path/filepath"

	"github.com/pkg/errors"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
)

// peers are the peers in the order and the colors of the plots.
var peers = []struct {
	name, label string
	color       color.Color
}{
	{peer.Latchkey, "latchkey", color.RGBA{R: 0x1b, G: 0x7f, B: 0x79, A: 0xff}},
	{peer.ClusterAPI, "Cluster API", color.RGBA{R: 0xd9, G: 0x7a, B: 0x26, A: 0xff}},
	{peer.Plain, "plain caches", color.RGBA{R: 0x8a, G: 0x8f, B: 0x98, A: 0xff}},
}

const kib = 1024.0

// Plot writes plots as SVG. It leaves out what was not measured.
func (r Results) Plot(folder string) error {
	if err := r.plotIdle(filepath.Join(folder, "identities.svg")); err != nil {
		return err
	}
	for file, title := range map[string]string{"empty_informer": "Memory per informer without objects, KiB",
		"same_objects_1000": "Heap per identity that sees 1,000 objects of 1 KiB, KiB"} {
		if err := r.plotBytes(filepath.Join(folder, file+".svg"), file, title); err != nil {
			return err
		}
	}
	return nil
}

// plotIdle plots what an idle identity costs, by the number of identities.
func (r Results) plotIdle(file string) error {
	p := plot.New()
	p.Title.Text = "Heap per idle identity, KiB"
	p.X.Label.Text = "identities"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: 0}, plot.LogTicks{Prec: 0}
	p.Legend.Top = true
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
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return errors.WithStack(err)
		}
		sizes = max(sizes, len(points))
		line.Color, dots.Color, line.Width = one.color, one.color, vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(one.label, line, dots)
	}
	if sizes < 2 {
		return nil // no line
	}
	return errors.WithStack(p.Save(6*vg.Inch, 3.5*vg.Inch, file))
}

// plotBytes plots the bytes of a scenario as bars.
func (r Results) plotBytes(file, scenario, title string) error {
	if r[peer.Latchkey][scenario] == nil {
		return nil
	}
	p := plot.New()
	p.Title.Text = title
	p.Y.Min = 0
	var labels []string
	for n, one := range peers {
		bars, err := plotter.NewBarChart(plotter.Values{r[one.name][scenario]["bytes"] / kib}, vg.Points(50))
		if err != nil {
			return errors.WithStack(err)
		}
		bars.Color, bars.XMin = one.color, float64(n)
		p.Add(bars)
		labels = append(labels, one.label)
	}
	p.NominalX(labels...)
	return errors.WithStack(p.Save(6*vg.Inch, 3*vg.Inch, file))
}
