package report

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/pkg/errors"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The font of the status page, and the one in which text is measured. SVG makes the former as wide
// as the latter.
const (
	fontFamily   = "system-ui, sans-serif"
	measuredFont = "Liberation Sans"
)

// The size of a chart.
const (
	chartWidth  = 6 * vg.Inch
	chartHeight = 3.25 * vg.Inch
	margin      = 10 // around everything, and between the plot and its legend
)

var (
	textColor = color.RGBA{R: 0x1c, G: 0x23, B: 0x2b, A: 0xff}
	axisColor = color.RGBA{R: 0x8a, G: 0x8f, B: 0x98, A: 0xff}
	gridColor = color.RGBA{R: 0xe3, G: 0xe6, B: 0xea, A: 0xff}
)

// chart is a plot in the look of all of them. The legend has a place of its own beside the plot, so
// that no curve can touch it.
type chart struct {
	*plot.Plot
	legend plot.Legend
	width  vg.Length // of the legend; 0 for none
}

// newChart returns a chart with a title and without data.
func newChart(title string) *chart {
	c := &chart{Plot: plot.New(), legend: plot.NewLegend()}
	c.Title.Text, c.Title.Padding = title, margin
	for _, style := range []*text.Style{&c.Title.TextStyle, &c.legend.TextStyle, &c.X.Label.TextStyle, &c.X.Tick.Label,
		&c.Y.Label.TextStyle, &c.Y.Tick.Label} {
		style.Font.Variant, style.Font.Size, style.Color = "Sans", 10, textColor
	}
	c.Title.TextStyle.Font.Size = 12
	for _, axis := range []*plot.Axis{&c.X, &c.Y} {
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = axisColor, axisColor
		axis.Tick.Length = 4
		axis.Label.Padding = 4
	}
	c.legend.Top, c.legend.Left, c.legend.Padding = true, true, 4
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, gridColor
	c.Add(grid)
	return c
}

// addLine adds a curve with a mark at each of its points, and its name to the legend.
func (c *chart) addLine(name string, points plotter.XYs, lineColor color.Color, mark draw.GlyphDrawer) error {
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return errors.WithStack(err)
	}
	line.Color, line.Width = lineColor, 2
	marks.Color, marks.Shape, marks.Radius = lineColor, mark, 3.5
	c.Add(line, marks)
	c.legend.Add(name, line, marks)
	c.width = max(c.width, c.legend.ThumbnailWidth+c.legend.TextStyle.Width(" "+name)+margin)
	return nil
}

// addBar adds a bar with its value above it.
func (c *chart) addBar(n int, value float64, barColor color.Color) error {
	bar, err := plotter.NewBarChart(plotter.Values{value}, 56)
	if err != nil {
		return errors.WithStack(err)
	}
	bar.Color, bar.XMin, bar.LineStyle.Width = barColor, float64(n), 0
	label, err := plotter.NewLabels(plotter.XYLabels{
		XYs:    plotter.XYs{{X: float64(n), Y: value}},
		Labels: []string{decimal(value)},
	})
	if err != nil {
		return errors.WithStack(err)
	}
	label.TextStyle[0] = c.X.Tick.Label
	label.TextStyle[0].YAlign, label.Offset.Y = draw.YBottom, 3
	c.Add(bar, label)
	return nil
}

// write writes the chart as SVG.
func (c *chart) write(file string) error {
	canvas := &measuringCanvas{Canvas: vgsvg.New(chartWidth, chartHeight)}
	whole := draw.New(canvas)
	canvas.SetColor(color.White)
	canvas.Fill(whole.Rectangle.Path())
	inner := draw.Crop(whole, margin, -margin, margin, -margin)
	c.BackgroundColor = nil
	c.Draw(draw.Crop(inner, 0, -c.width, 0, 0))
	top := c.Title.TextStyle.Height(c.Title.Text) + c.Title.Padding
	c.legend.Draw(draw.Crop(inner, inner.Size().X-c.width+margin, 0, 0, -top))
	picture, err := canvas.svg()
	if err != nil {
		return err
	}
	picture = strings.Replace(picture, "<svg ",
		fmt.Sprintf(`<svg role="img" aria-label="%s" `, html.EscapeString(c.Title.Text)), 1)
	return errors.WithStack(os.WriteFile(file, []byte(picture), 0o600))
}

// measuringCanvas is an SVG canvas that knows how wide each text was when it was placed.
type measuringCanvas struct {
	*vgsvg.Canvas
	widths []vg.Length // of the texts, in the order of the document
}

// FillString implements vg.Canvas.
func (c *measuringCanvas) FillString(face font.Face, at vg.Point, content string) {
	c.widths = append(c.widths, face.Width(content))
	c.Canvas.FillString(face, at, content)
}

// svg returns the document, with the font of the status page.
func (c *measuringCanvas) svg() (string, error) {
	var document bytes.Buffer
	if _, err := c.WriteTo(&document); err != nil {
		return "", errors.WithStack(err)
	}
	texts := strings.Split(document.String(), "<text ")
	for i, width := range c.widths {
		texts[i+1] = fmt.Sprintf(`<text textLength="%.5g" lengthAdjust="spacingAndGlyphs" `, width.Points()) + texts[i+1]
	}
	return strings.ReplaceAll(strings.Join(texts, ""), "font-family:"+measuredFont, "font-family:"+fontFamily), nil
}

// logarithmic gives an axis a logarithmic scale, from the first to the last of the labelled steps
// that the data need. steps are the digits that get a label, such as 1, 2 and 5.
func logarithmic(axis *plot.Axis, steps ...float64) {
	axis.Scale = plot.LogScale{}
	axis.Min, axis.Max = step(axis.Min, false, steps), step(axis.Max, true, steps)
	axis.Tick.Marker = plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
		for decade := math.Pow10(int(math.Floor(math.Log10(low)))); decade <= high; decade *= 10 {
			for digit := 1.0; digit < 10; digit++ {
				tick := plot.Tick{Value: digit * decade}
				for _, labelled := range steps {
					if labelled == digit {
						tick.Label = decimal(tick.Value)
					}
				}
				ticks = append(ticks, tick)
			}
		}
		return ticks
	})
}

// step returns the nearest labelled step at or beyond a value.
func step(value float64, up bool, steps []float64) float64 {
	decade := math.Pow10(int(math.Floor(math.Log10(value))))
	nearest := steps[0] * decade
	for _, s := range append(steps, 10*steps[0]) {
		switch {
		case up && s*decade >= value:
			return s * decade
		case s*decade <= value:
			nearest = s * decade
		}
	}
	return nearest
}

// linear gives an axis decimal labels, begins it at 0, and leaves room above the data for the value
// of the highest bar.
func linear(axis *plot.Axis) {
	axis.Min, axis.Max = 0, 1.1*axis.Max
	axis.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		ticks := plot.DefaultTicks{}.Ticks(low, high)
		for i := range ticks {
			if ticks[i].Label != "" {
				ticks[i].Label = decimal(ticks[i].Value)
			}
		}
		return ticks
	})
}

// decimal returns a number as the pages write it: 10,000, and not 1e+04. Numbers below 10 have one
// decimal place.
func decimal(value float64) string {
	if value < 10 {
		return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0")
	}
	digits := strconv.FormatFloat(value, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
