package report

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

var update = flag.Bool("update", false, "write the pictures of docs/benchmarks.md")

// The pictures of docs/benchmarks.md show the results in testdata, of the run that its tables are
// about.
func TestPictures(t *testing.T) {
	g := NewWithT(t)
	text, err := os.ReadFile(filepath.Join("testdata", "results.json"))
	g.Expect(err).NotTo(HaveOccurred())
	var results Results
	g.Expect(json.Unmarshal(text, &results)).To(Succeed())
	drawn := t.TempDir()
	g.Expect(results.Plot(drawn)).To(Succeed())
	for from, to := range map[string]string{
		"identities.svg":        "benchmarks-identities.svg",
		"same_objects_1000.svg": "benchmarks-same-objects.svg",
	} {
		now, err := os.ReadFile(filepath.Join(drawn, from))
		g.Expect(err).NotTo(HaveOccurred())
		page := filepath.Join("..", "..", "..", "docs", to)
		if *update {
			g.Expect(os.WriteFile(page, now, 0o600)).To(Succeed())
		}
		before, err := os.ReadFile(page)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(now)).To(Equal(string(before)),
			"draw it anew: go test -C bench ./internal/report -update")
	}
}

func TestDecimal(t *testing.T) {
	g := NewWithT(t)
	for value, want := range map[float64]string{
		0: "0", 5: "5", 6.77: "6.8", 12.86: "13", 147.2: "147", 999: "999", 1000: "1,000", 10_000: "10,000",
		2152.86: "2,153", 1_234_567: "1,234,567",
	} {
		g.Expect(decimal(value)).To(Equal(want))
	}
}

// A logarithmic axis begins and ends at steps that have a label.
func TestStep(t *testing.T) {
	g := NewWithT(t)
	digits := []float64{1, 2, 5}
	for _, tc := range []struct{ value, down, up float64 }{
		{1, 1, 1}, {6.77, 5, 10}, {431, 200, 500}, {10, 10, 10}, {999, 500, 1000}, {0.3, 0.2, 0.5},
	} {
		g.Expect(step(tc.value, false, digits)).To(BeNumerically("~", tc.down), "down from %g", tc.value)
		g.Expect(step(tc.value, true, digits)).To(BeNumerically("~", tc.up), "up from %g", tc.value)
	}
	g.Expect(step(300, true, []float64{1})).To(BeNumerically("~", 1000))
}
