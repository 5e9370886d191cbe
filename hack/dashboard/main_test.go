package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// The committed dashboard is the one that this program prints.
func TestDashboardIsCommitted(t *testing.T) {
	g := NewWithT(t)
	committed, err := os.ReadFile("../../deploy/observability/dashboard.json")
	g.Expect(err).NotTo(HaveOccurred())
	var printed bytes.Buffer
	encoder := json.NewEncoder(&printed)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	g.Expect(encoder.Encode(dashboard())).To(Succeed())
	g.Expect(printed.String()).To(Equal(string(committed)), `run "make deploy"`)
}

var metricName = regexp.MustCompile(`latchkey[_:][a-z0-9_:]*[a-z0-9]`)

// Dashboard and alerts use only metrics of docs/operations.md, whose list is that of the code, or
// what a recording rule records. The dashboard shows every metric.
func TestMetricsExist(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	exist := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(latchkey_[a-z_]+)` \\| (\\w+)").FindAllStringSubmatch(string(page), -1) {
		name := row[1]
		if row[2] == "histogram" {
			name += "_bucket"
		}
		exist[name] = true
	}
	g.Expect(len(exist)).To(BeNumerically(">", 10))

	var rules struct {
		Groups []struct {
			Rules []struct{ Record, Alert, Expr string }
		}
	}
	content, err := os.ReadFile("../../deploy/observability/rules.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.Unmarshal(content, &rules)).To(Succeed())
	recorded := map[string]bool{}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			for _, name := range metricName.FindAllString(rule.Expr, -1) {
				g.Expect(exist[name] || recorded[name]).To(BeTrue(), "%s%s uses %s", rule.Record, rule.Alert, name)
			}
			if rule.Record != "" {
				recorded[rule.Record] = true
			}
		}
	}

	shown := map[string]bool{}
	for _, panel := range slices.Concat(fleet(), view(), tenant()) {
		for _, query := range panel.queries {
			for _, name := range metricName.FindAllString(query.expr, -1) {
				g.Expect(exist).To(HaveKey(name), panel.title)
				shown[name] = true
			}
		}
	}
	variables, err := json.Marshal(dashboard()["templating"])
	g.Expect(err).NotTo(HaveOccurred())
	used := metricName.FindAllString(string(variables), -1)
	g.Expect(used).NotTo(BeEmpty())
	for _, name := range used {
		g.Expect(exist).To(HaveKey(name), "a variable")
	}
	g.Expect(slices.Sorted(maps.Keys(shown))).To(Equal(slices.Sorted(maps.Keys(exist))),
		"the dashboard shows every metric")
}

// Panels do not overlap, and fill the width.
func TestLayout(t *testing.T) {
	g := NewWithT(t)
	taken := map[[2]int]bool{}
	for _, p := range dashboard()["panels"].([]object) {
		at := p["gridPos"].(object)
		for x := at["x"].(int); x < at["x"].(int)+at["w"].(int); x++ {
			g.Expect(x).To(BeNumerically("<", 24))
			for y := at["y"].(int); y < at["y"].(int)+at["h"].(int); y++ {
				g.Expect(taken).NotTo(HaveKey([2]int{x, y}), "%v", p["title"])
				taken[[2]int{x, y}] = true
			}
		}
	}
}
