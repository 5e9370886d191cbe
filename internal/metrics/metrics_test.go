package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
)

// described parses a description, because Prometheus has no other way to read one.
var described = regexp.MustCompile(
	`^Desc\{fqName: "([^"]+)", help: "([^"]*)", unit: "[a-z]*", constLabels: \{\}, variableLabels: \{([^}]*)\}`)

// docs/operations.md explains every metric, with its labels, and no other metric.
func TestOperationsPageListsEveryMetric(t *testing.T) {
	g := NewWithT(t)
	registered := map[string]string{}
	for _, c := range everything {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for desc := range descs {
			match := described.FindStringSubmatch(desc.String())
			g.Expect(match).NotTo(BeNil(), desc.String())
			g.Expect(match[2]).NotTo(BeEmpty(), "help of %s", match[1])
			registered[match[1]] = match[3]
		}
	}
	page, err := os.ReadFile("../../docs/operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	explained := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(latchkey_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\|").
		FindAllStringSubmatch(string(page), -1) {
		explained[row[1]] = strings.NewReplacer("`", "", " ", "").Replace(row[3])
	}
	g.Expect(explained).To(Equal(registered))
	for _, name := range regexp.MustCompile(`latchkey_[a-z_]+`).FindAllString(string(page), -1) {
		g.Expect(registered).To(HaveKey(strings.TrimSuffix(name, "_bucket")),
			"the page mentions this metric in another place")
	}
}

// The collector adds up snapshots, and no longer calls a removed one.
func TestCollect(t *testing.T) {
	g := NewWithT(t)
	c := &collector{snapshots: map[int]func() Snapshot{}}
	one := Snapshot{Connections: map[Connection]int{{"Connected", ""}: 2}, Watches: 3, Objects: 5,
		Informers: map[string]int{"Synced": 1},
		Extensions: []Extension{{Name: "red", Connected: true, LastSuccess: time.Unix(1_000_000_000, 500_000_000)},
			{Name: "blue"}}}
	removeFirst := c.add(func() Snapshot { return one })
	removeSecond := c.add(func() Snapshot { return one })
	gather := func() map[string]float64 {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		values := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				values[family.GetName()] += metric.GetGauge().GetValue()
			}
		}
		return values
	}
	g.Expect(gather()).
		To(Equal(map[string]float64{"latchkey_connections": 4, "latchkey_watches": 6, "latchkey_objects": 10,
			"latchkey_informers":           2,
			"latchkey_extension_connected": 1, "latchkey_extension_last_success_timestamp_seconds": 1_000_000_000.5}))
	removeFirst()
	removeSecond()
	g.Expect(gather()).To(Equal(map[string]float64{"latchkey_watches": 0, "latchkey_objects": 0}))
}
