package figures

import (
	"fmt"
	"strings"

	"github.com/pkg/errors"
)

// row is a figure of a table, and what it is.
type row struct{ figure, what string }

// tables are the tables of docs/benchmarks.md.
var tables = []struct {
	name  string
	peers bool // beside the other peers
	rows  []row
}{
	{"peers", true, []row{
		{"connect_1000.cpu_ms", "CPU per connect"},
		{"connect_1000.wall_ms", "wall time per connect"},
		{"connect_1000.requests", "requests per connect"},
		{"idle_heap.bytes", "heap per identity"},
		{"idle_goroutines.goroutines", "goroutines per identity"},
		{"same_objects_1000.bytes", "heap per identity that sees 1,000 ConfigMaps of 1 KiB, as all others do"},
		{"disjoint_objects.bytes", "heap per identity that sees 100 ConfigMaps of 1 KiB of its own"},
		{"empty_informer.goroutines", "goroutines of an informer without objects"},
		{"empty_informer.bytes", "its heap and stacks"},
		{"empty_informer.heap_bytes", "its heap"},
		{"empty_informer.stack_bytes", "its stacks"},
		{"first_read_100.ms", "first read of a kind with 100 objects"},
		{"warm_get.ns", "a cached Get"},
		{"warm_list.ns", "a cached List of 100 objects"},
		{"event_latency.ms", "from a write to its event"},
		{"getclient.ns", "`GetClient`"},
		{"getclient_spread.ns", "`GetClient` of all tenants in turn"},
		{"getclient_churn.ns", "`GetClient` while another tenant connects and disconnects"},
		{"delete_1000.wall_ms", "wall time per tenant that is deleted"},
		{"restart.s", "until all tenants see a new object after the API server was down for 10 s"},
		{"tcp_connections.connections", "TCP connections with an informer per tenant"},
	}},
	{"shared identities", true, []row{
		{"shared_identity.watches_per_kind", "watches at the API server, per kind"},
		{"shared_identity.access_reviews", "access reviews, for all tenants"},
		{"shared_identity.idle_bytes", "heap and stacks of an idle tenant"},
		{"shared_identity.goroutines", "goroutines, all tenants"},
		{"shared_identity.reader_bytes", "heap and stacks of a further tenant that reads both kinds"},
		{"shared_identity.writer_bytes", "heap of its client, from the first write on"},
		{"shared_identity.first_read_us", "its first read"},
	}},
	{"latchkey alone", false, []row{
		{"idle_10k.rss_mib", "resident memory with 10,000 identities that nothing uses, for 10 minutes"},
		{"idle_10k.cores", "cores"},
		{"idle_10k.requests_per_s", "requests a second"},
		{"idle_100k.rss_mib", "resident memory with 100,000 of them"},
		{"idle_100k.cores", "cores"},
		{"idle_100k.requests_per_s", "requests a second"},
		{"rbac_edit.reviews_per_s_at_rest", "access reviews a second of 1,000 identities with five informers each, with `WatchRBAC`"},
		{"rbac_edit.reviews_per_edit", "access reviews per edit of the ClusterRole of one of them"},
		{"informers_5x10000.goroutines", "goroutines with 10,000 extensions of 500 identities, which watch five kinds each"},
		{"informers_5x10000.rss_mib", "resident memory"},
		{"informers_5x10000.rss_mib_afterwards", "resident memory after the API server was down for a minute"},
		{"informers_5x10000.peak_rss_mib_afterwards", "at most"},
		{"informers_5x10000.sync_s", "from the first watch until all have synced"},
		{"informers_5x10000.recovery_s", "after the outage, until all have synced and each deletion has arrived once"},
		{"informers_5x10000.token_requests", "TokenRequests after the outage"},
		{"informers_10x1000.goroutines", "goroutines with 1,000 identities that watch ten kinds each"},
		{"informers_10x1000.rss_mib", "resident memory"},
		{"informers_10x1000.live_heap_mib", "heap in use"},
		{"informers_10x1000.live_stacks_mib", "stacks in use"},
		{"informers_10x1000.peak_rss_mib_afterwards", "resident memory at most, with the outage"},
		{"informers_10x1000.sync_s", "from the first watch until all have synced"},
		{"informers_10x1000.recovery_s", "after the outage, until all have synced and each deletion has arrived once"},
		{"informers_10x1000.token_requests", "TokenRequests after the outage"},
		{"replicas_1.rss_mib", "resident memory of one replica with 10,000 extensions that are connected and read nothing"},
		{"replicas_1.cores", "cores"},
		{"replicas_1.writes_per_s", "writes to Leases of 64 buckets, per second"},
		{"replicas_3.largest_rss_mib", "resident memory of the largest of three replicas that share them"},
		{"replicas_3.rss_mib", "resident memory of all three"},
		{"replicas_3.largest_cores", "cores of the busiest"},
		{"replicas_3.cores", "cores of all three"},
		{"replicas_3.writes_per_s", "writes to Leases of buckets, per second"},
	}},
}

// Update returns a page with its tables written anew. Each stands between a comment
// "<!-- table: NAME, from bench/record.json -->" and "<!-- end of table -->".
func (r Record) Update(page string) (string, error) {
	for _, t := range tables {
		begin := fmt.Sprintf("<!-- table: %s, from bench/record.json -->\n", t.name)
		before, rest, ok := strings.Cut(page, begin)
		if !ok {
			return "", errors.Errorf("the page lacks %q", begin)
		}
		const end = "<!-- end of table -->"
		_, after, ok := strings.Cut(rest, end)
		if !ok {
			return "", errors.Errorf("the page lacks %q after %q", end, begin)
		}
		var table strings.Builder
		if t.peers {
			table.WriteString("| figure | what it is | latchkey | Cluster API | ratio | plain caches | ratio |\n" +
				"| --- | --- | --- | --- | --- | --- | --- |\n")
		} else {
			table.WriteString("| figure | what it is | latchkey |\n| --- | --- | --- |\n")
		}
		for _, row := range t.rows {
			if err := r.line(&table, row, t.peers); err != nil {
				return "", err
			}
		}
		page = before + begin + table.String() + end + after
	}
	return page, nil
}

// line writes a row. A peer that cannot do what the scenario measures has empty cells.
func (r Record) line(table *strings.Builder, row row, peers bool) error {
	ours, err := r.Text(row.figure)
	if err != nil {
		return err
	}
	fmt.Fprintf(table, "| `%s` | %s | %s |", row.figure, row.what, ours)
	if peers {
		value, _ := r.value(row.figure, Latchkey)
		for _, peer := range []string{ClusterAPI, Plain} {
			theirs, ok := r.value(row.figure, peer)
			if !ok {
				table.WriteString(" | |")
				continue
			}
			text, err := r.Text(row.figure + "/" + peer)
			if err != nil {
				return err
			}
			fmt.Fprintf(table, " %s | %s |", text, number(theirs/value))
		}
	}
	table.WriteString("\n")
	return nil
}
