package metrics

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// docs/operations.md explains every metric, with its labels, and no other metric.
func TestOperationsPageListsEveryMetric(t *testing.T) {
	g := NewWithT(t)
	registered := map[string]string{}
	for _, d := range Descriptions() {
		g.Expect(d.Help).NotTo(BeEmpty(), "help of %s", d.Name)
		registered[d.Name] = strings.Join(d.Labels, ",")
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

// The collector adds up the caches of a name, keeps names apart, and no longer calls a cache that
// has ended.
func TestCollect(t *testing.T) {
	g := NewWithT(t)
	c := &collector{exported: map[int]exported{}, announced: map[string]int{}}
	one := Snapshot{
		Connections: map[Connection]int{{"Connected", ""}: 2},
		Watches:     3,
		Objects:     5,
		Caches:      2,
		CacheUsers:  11,
		Permissions: map[string]int{"used": 3, "refused": 0},
		Informers:   map[string]int{"Synced": 1},
		Extensions: []Extension{{Name: "red", Connected: true, LastSuccess: time.Unix(1_000_000_000, 500_000_000)},
			{Name: "blue"}},
	}
	removeFirst := c.add("one", func() Snapshot { return one })
	removeSecond := c.add("one", func() Snapshot { return one })
	removeInformers := c.add("two", func() Snapshot { return Snapshot{Objects: 7} })
	gather := func() map[string]float64 {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		values := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				g.Expect(metric.GetLabel()[0].GetName()).To(Equal("cache"))
				values[family.GetName()+" "+metric.GetLabel()[0].GetValue()] += metric.GetGauge().GetValue()
			}
		}
		return values
	}
	g.Expect(gather()).To(Equal(map[string]float64{
		"latchkey_connections one": 4, "latchkey_watches one": 6, "latchkey_objects one": 10, "latchkey_informers one": 2,
		"latchkey_extension_connected one": 1, "latchkey_extension_last_success_timestamp_seconds one": 1_000_000_000.5,
		"latchkey_caches one": 4, "latchkey_cache_users one": 22, "latchkey_permissions one": 6,
		"latchkey_objects two": 7}))
	removeFirst()
	g.Expect(gather()).To(HaveKeyWithValue("latchkey_watches one", 3.0))
	removeSecond()
	g.Expect(gather()).To(Equal(map[string]float64{"latchkey_objects two": 7}))
	removeInformers()
	g.Expect(gather()).To(BeEmpty())
}

// Extensions that are divided are counted by slices, and in all. The slices are ranges that
// Kubernetes' sharded list and watch can select, and caches of one name add up.
func TestDivision(t *testing.T) {
	g := NewWithT(t)
	c := &collector{exported: map[int]exported{}, announced: map[string]int{}}
	var division Division
	want := map[string]float64{"extensions true": 0, "extensions false": 0}
	for i := range 300 {
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uuid.NewUUID()}}
		own := i%3 == 0
		division.Add(object.UID, own)
		for slice := range uint64(64) {
			end := fmt.Sprintf("0x%016x", (slice+1)<<58)
			if slice == 63 {
				end = "0x10000000000000000"
			}
			in, err := sharding.NewSelector(sharding.ShardRangeRequirement{
				Key:   "object.metadata.uid",
				Start: fmt.Sprintf("0x%016x", slice<<58),
				End:   end,
			}).Matches(object)
			g.Expect(err).NotTo(HaveOccurred())
			if in {
				want[fmt.Sprintf("extensions %t", own)] += 2
				want[fmt.Sprintf("slice_extensions %d %t", slice, own)] += 2
				want[fmt.Sprintf("slice_extensions %d %t", slice, !own)] += 0
			}
		}
	}
	for range 2 {
		c.add("one", func() Snapshot { return Snapshot{Connections: map[Connection]int{}, Divided: &division} })
	}
	for range 2 { // a collection changes nothing
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		values := map[string]float64{}
		for _, family := range families {
			name, ours := strings.CutPrefix(family.GetName(), "latchkey_ownership_")
			for _, metric := range family.GetMetric() {
				labels := map[string]string{}
				for _, label := range metric.GetLabel() {
					labels[label.GetName()] = label.GetValue()
				}
				if ours {
					values[strings.Join(strings.Fields(name+" "+labels["slice"]+" "+labels["owned"]), " ")] =
						metric.GetGauge().GetValue()
				}
			}
		}
		g.Expect(values).To(Equal(want))
	}
	g.Expect(want).To(And(HaveKeyWithValue("extensions true", 200.0), HaveKeyWithValue("extensions false", 400.0)))
}

// A replica that does not lead says so, until its manager ends.
func TestLeading(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(all)
	leads := func() map[string]float64 {
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		values := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				if family.GetName() == "latchkey_leading" {
					values[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
				}
			}
		}
		return values
	}
	one, same, other := New("one"), New("one"), New("other")
	endOne, endSame, endOther := one.Announce(), same.Announce(), other.Announce()
	g.Expect(leads()).To(Equal(map[string]float64{"one": 0, "other": 0}))
	end := one.Export(func() Snapshot { return Snapshot{Connections: map[Connection]int{}} })
	g.Expect(leads()).To(Equal(map[string]float64{"one": 1, "other": 0}))
	end()
	informers := ExportInformers("other", func() Snapshot { return Snapshot{Informers: map[string]int{}} })
	g.Expect(leads()).To(Equal(map[string]float64{"one": 0, "other": 0}))
	informers()
	endOne()
	g.Expect(leads()).To(HaveKey("one"), "the other cache of the name is still there")
	endSame()
	endOther()
	g.Expect(leads()).To(BeEmpty())
	(*Cache)(nil).Announce()()
}

// The counters of a name are gone with the last cache of that name, and what comes late is dropped.
func TestCountersEndWithTheCache(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(everything()...)
	families := func(name string) (found []string) {
		gathered, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		for _, family := range gathered {
			for _, metric := range family.GetMetric() {
				if metric.GetLabel()[0].GetValue() == name {
					found = append(found, family.GetName())
				}
			}
		}
		return found
	}
	count := func(c *Cache) {
		c.Connected("Connected")
		c.ConnectTook(t.Context(), time.Second)
		c.Rotated("TakenUp")
		c.Probed("Valid")
		c.ProbeTook(t.Context(), time.Second)
		c.WaitedForTurn(t.Context(), time.Second)
		c.RequestedToken("Issued")
		c.HandlerPanicked()
		c.Fenced()
		c.LiveGet()
		c.Took()
		c.TookShare(t.Context(), time.Second)
	}
	snapshot := func() Snapshot { return Snapshot{Connections: map[Connection]int{}} }
	first, second, other := New("ending"), New("ending"), New("staying")
	endFirst, endSecond, endOther := first.Export(snapshot), second.Export(snapshot), other.Export(snapshot)
	defer endOther()
	g.Expect(families("ending")).To(ConsistOf("latchkey_handler_panics_total", "latchkey_connect_duration_seconds",
		"latchkey_probe_duration_seconds", "latchkey_pool_wait_seconds", "latchkey_watches", "latchkey_objects",
		"latchkey_caches", "latchkey_cache_users",
		"latchkey_rotations_total", "latchkey_token_requests_total", "latchkey_fenced_requests_total"),
		"what has no other label, and what alerts are about, is there before the first event")
	for _, c := range []*Cache{first, second, other} {
		count(c)
	}
	g.Expect(families("ending")).To(HaveLen(len(counting) + 6))
	endFirst()
	count(first)
	g.Expect(families("ending")).To(HaveLen(len(counting)+6), "the second cache of the name is still there")
	endSecond()
	count(second)
	g.Expect(families("ending")).To(BeEmpty())
	g.Expect(families("staying")).To(HaveLen(len(counting) + 6))
	count(nil)
}

// A duration that was recorded under a sampled span has the span as its exemplar, and others have
// none.
func TestExemplars(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(everything()...)
	c := New("traced")
	defer c.Export(func() Snapshot { return Snapshot{} })()
	exemplars := func() map[string]string {
		found := map[string]string{}
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				for _, bucket := range metric.GetHistogram().GetBucket() {
					var labels []string
					for _, label := range bucket.GetExemplar().GetLabel() {
						labels = append(labels, label.GetName()+"="+label.GetValue())
					}
					if slices.Sort(labels); labels != nil && metric.GetLabel()[0].GetValue() == "traced" {
						found[family.GetName()] += strings.Join(labels, " ")
					}
				}
			}
		}
		return found
	}
	record := func(flags trace.TraceFlags) {
		ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID:    trace.TraceID{1},
			SpanID:     trace.SpanID{2},
			TraceFlags: flags,
		}))
		c.ConnectTook(ctx, time.Second)
		c.ProbeTook(ctx, time.Second)
		c.WaitedForTurn(ctx, time.Second)
	}
	record(0)
	g.Expect(exemplars()).To(BeEmpty())
	record(trace.FlagsSampled)
	span := "span_id=0200000000000000 trace_id=01000000000000000000000000000000"
	g.Expect(exemplars()).To(Equal(map[string]string{"latchkey_connect_duration_seconds": span,
		"latchkey_probe_duration_seconds": span, "latchkey_pool_wait_seconds": span}))
}
