package figures

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestShow(t *testing.T) {
	for _, tc := range []struct {
		value float64
		unit  string
		want  string
	}{
		{13174, "bytes", "13 KiB"},
		{2_204_672, "bytes", "2,153 KiB"},
		{168.7, "writer_bytes", "0.16 KiB"},
		{386.3, "rss_mib_afterwards", "386 MiB"},
		{19.99, "ns", "20 ns"},
		{2.73, "ns", "2.7 ns"},
		{454.6, "ns", "455 ns"},
		{23_510, "ns", "24 µs"},
		{43.3, "first_read_us", "43 µs"},
		{100_794, "first_read_us", "101 ms"},
		{0.828, "cpu_ms", "0.83 ms"},
		{6.04, "ms", "6.0 ms"},
		{5.97, "s", "6.0 s"},
		{0.045, "goroutines", "0.045"},
		{9.96, "requests", "10"},
		{0.997, "requests", "1.0"},
		{0, "token_requests", "0"},
		{44_039, "goroutines", "44,039"},
		{0.7, "requests_per_s", "0.7"},
	} {
		NewWithT(t).Expect(show(tc.value, tc.unit)).To(Equal(tc.want), "%v %s", tc.value, tc.unit)
	}
}

// Update changes the tables of a page and nothing else, and a figure that the record lacks is an
// error.
func TestUpdate(t *testing.T) {
	g := NewWithT(t)
	r, page := Record{}, "# Page\n"
	for _, table := range tables {
		page += "\n<!-- table: " + table.name + ", from bench/record.json -->\nold\n<!-- end of table -->\n"
		for _, row := range table.rows {
			_, err := r.Text(row.figure)
			g.Expect(err).To(MatchError(ContainSubstring("no figure")))
		}
	}
	_, err := r.Update(page)
	g.Expect(err).To(MatchError(ContainSubstring(`no figure "connect_1000.cpu_ms"`)))

	recorded, err := Read("../../../bench/record.json")
	g.Expect(err).NotTo(HaveOccurred())
	recorded.Set("idle_heap", Latchkey, Measurement{From: "this test", Values: map[string]float64{"bytes": 2048}})
	recorded.Set("idle_heap", Plain, Measurement{From: "this test", Values: map[string]float64{"bytes": 1024}})
	delete(recorded["idle_heap"], ClusterAPI)
	file := filepath.Join(t.TempDir(), "record.json")
	g.Expect(recorded.Write(file)).To(Succeed())
	r, err = Read(file)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r).To(Equal(recorded))
	updated, err := r.Update(page)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(updated).To(And(HavePrefix("# Page\n\n<!-- table: peers"), Not(ContainSubstring("old")),
		ContainSubstring("| `idle_heap.bytes` | heap per identity | 2.0 KiB | | | 1.0 KiB | 0.5 |\n")))
	g.Expect(r.Update(updated)).To(Equal(updated))
	_, err = r.Update("# Page\n")
	g.Expect(err).To(MatchError(ContainSubstring("the page lacks")))
}
