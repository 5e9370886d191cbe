package stage

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
)

// connect measures the connects of all tenants, what they cost when nothing uses them, and
// GetClient.
func connect(ctx context.Context, e *env) error {
	before := measure()
	connecting, err := e.spent(ctx, func() error { return e.peer.Connect(ctx, e.n) })
	if err != nil {
		return err
	}
	if e.name != peer.Plain { // which sends nothing until something is read
		e.values.set("connect_1000", "wall_ms", connecting.took.Seconds()*1000/float64(e.n))
		e.values.set("connect_1000", "cpu_ms", connecting.cpu.Seconds()*1000/float64(e.n))
		e.values.set("connect_1000", "requests", connecting.requests/float64(e.n))
	}
	if err := pause(ctx, 5*time.Second); err != nil { // until what only the connects needed is gone
		return err
	}
	idle := measure().per(before, e.n)
	e.values.set("idle_heap", "bytes", idle.heap)
	e.values.set("idle_goroutines", "goroutines", idle.goroutines)

	for scenario, tenants := range map[string]int{"getclient": 1, "getclient_spread": e.n} {
		result := e.getClients(ctx, tenants)
		e.values.set(scenario, "ns", float64(result.T.Nanoseconds())/float64(result.N))
		e.values.set(scenario, "allocs", float64(result.AllocsPerOp()))
	}
	return nil
}

// spending is what something took.
type spending struct {
	took, cpu time.Duration
	requests  float64 // that the API server received
}

// spent returns what f takes.
func (e *env) spent(ctx context.Context, f func() error) (s spending, err error) {
	requestsBefore, err := e.requests(ctx)
	if err != nil {
		return s, err
	}
	cpuBefore, err := cpu()
	if err != nil {
		return s, err
	}
	began := time.Now()
	if err := f(); err != nil {
		return s, err
	}
	s.took = time.Since(began)
	cpuAfter, err := cpu()
	if err != nil {
		return s, err
	}
	requestsAfter, err := e.requests(ctx)
	s.cpu, s.requests = cpuAfter-cpuBefore, requestsAfter-requestsBefore
	return s, err
}

// size measures what an idle identity costs among few of them.
func size(ctx context.Context, e *env) error {
	before := measure()
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	return e.idleHeap(ctx, before)
}

// idleHeap sets what each of the identities has added to the heap.
func (e *env) idleHeap(ctx context.Context, before usage) error {
	if err := pause(ctx, 5*time.Second); err != nil { // until what only the connects needed is gone
		return err
	}
	e.values.set(fmt.Sprintf("idle_heap_%d", e.n), "bytes", measure().per(before, e.n).heap)
	return nil
}

// getClients gets the clients of so many tenants in turn.
func (e *env) getClients(ctx context.Context, tenants int) testing.BenchmarkResult {
	return testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for tenant := 0; b.Loop(); tenant++ {
			if tenant == tenants {
				tenant = 0
			}
			if _, err := e.peer.GetClient(ctx, tenant); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// requests returns how many requests with these labels the API server has served since it started,
// but for reads of its metrics.
func (e *env) requests(ctx context.Context, labels ...string) (sum float64, err error) {
	return e.metric(ctx, "apiserver_request_total", labels...)
}

// watches returns how many watches of the kinds that siblings read the API server has now.
func (e *env) watches(ctx context.Context) (sum float64, err error) {
	for _, resource := range []string{"limitranges", "podtemplates"} {
		open, err := e.metric(ctx, "apiserver_longrunning_requests", `verb="WATCH"`, `resource="`+resource+`"`)
		if err != nil {
			return 0, err
		}
		sum += open
	}
	return sum, nil
}

// metric returns the sum of a metric of the API server over the series with these labels.
func (e *env) metric(ctx context.Context, name string, labels ...string) (sum float64, err error) {
	admin, err := kubernetes.NewForConfig(e.config)
	if err != nil {
		return 0, errors.WithStack(err)
	}
	body, err := admin.RESTClient().Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return 0, errors.WithStack(err)
	}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, name+"{") || strings.Contains(line, `subresource="/metrics"`) {
			continue
		}
		if slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(line, label) }) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if err != nil {
			return 0, errors.WithStack(err)
		}
		sum += value
	}
	return sum, errors.WithStack(lines.Err())
}
