package metrics

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A fleet has its gauges until it ends. Two of one name do not break the collection.
func TestFleet(t *testing.T) {
	g := NewWithT(t)
	c := &collector{}
	end := c.addFleet("team", func() Fleet {
		return Fleet{
			Serves:    true,
			States:    map[string]int{"Connected": 3, "Unknown": 0},
			Unclaimed: Lasting{Extensions: 2, Oldest: 1500 * time.Millisecond},
			Contested: Lasting{Extensions: 1, Oldest: time.Minute},
			Replicas:  3,
			Silent:    1,
		}
	})
	endSame := c.addFleet("team", func() Fleet {
		return Fleet{States: map[string]int{"Connected": 2, "Unknown": 1}, Replicas: 4}
	})
	values := `
latchkey_fleet_contested_extensions{fleet="team"} 1
latchkey_fleet_contested_oldest_seconds{fleet="team"} 60
latchkey_fleet_extensions{fleet="team",state="Connected"} 3
latchkey_fleet_extensions{fleet="team",state="Unknown"} 1
latchkey_fleet_replicas{fleet="team"} 4
latchkey_fleet_serving{fleet="team"} 1
latchkey_fleet_silent_replicas{fleet="team"} 1
latchkey_fleet_unclaimed_extensions{fleet="team"} 2
latchkey_fleet_unclaimed_oldest_seconds{fleet="team"} 1.5
`
	var page strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(values), "\n") {
		name, _, _ := strings.Cut(line, "{")
		if !strings.Contains(page.String(), "# TYPE "+name+" ") {
			for _, d := range Descriptions() {
				if d.Name == name {
					page.WriteString("# HELP " + name + " " + d.Help + "\n# TYPE " + name + " gauge\n")
				}
			}
		}
		page.WriteString(line + "\n")
	}
	g.Expect(testutil.CollectAndCompare(c, strings.NewReader(page.String()))).To(Succeed())
	end()
	g.Expect(testutil.CollectAndCount(c, "latchkey_fleet_serving")).To(Equal(1), "the other one is still there")
	endSame()
	g.Expect(testutil.CollectAndCount(c)).To(BeZero())
}
