package stage

import (
	"bufio"
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
)

// connect measures the connects of all tenants, what they cost when nothing uses them, and GetClient.
func connect(ctx context.Context, e *env) error {
	requestsBefore, err := e.requests(ctx)
	if err != nil {
		return err
	}
	before := measure()
	cpuBefore, err := cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	took := time.Since(began)
	cpuAfter, err := cpu()
	if err != nil {
		return err
	}
	requestsAfter, err := e.requests(ctx)
	if err != nil {
		return err
	}
	if e.name != peer.Plain { // which sends nothing until something is read
		e.values.set("connect_1000", "wall_ms", took.Seconds()*1000/float64(e.n))
		e.values.set("connect_1000", "cpu_ms", (cpuAfter-cpuBefore).Seconds()*1000/float64(e.n))
		e.values.set("connect_1000", "requests", (requestsAfter-requestsBefore)/float64(e.n))
	}
	select { // until what only the connects needed is gone
	case <-ctx.Done():
		return errors.WithStack(ctx.Err())
	case <-time.After(5 * time.Second):
	}
	idle := measure().per(before, e.n)
	e.values.set("idle_heap", "bytes", idle.heap)
	e.values.set("idle_goroutines", "goroutines", idle.goroutines)

	for scenario, tenants := range map[string]int{"getclient": 1, "getclient_spread": e.n} {
		result := testing.Benchmark(func(b *testing.B) {
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
		e.values.set(scenario, "ns", float64(result.T.Nanoseconds())/float64(result.N))
		e.values.set(scenario, "allocs", float64(result.AllocsPerOp()))
	}
	return nil
}

// requests returns how many requests the API server has served, but for reads of its metrics.
func (e *env) requests(ctx context.Context) (sum float64, err error) {
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
		if !strings.HasPrefix(line, "apiserver_request_total{") || strings.Contains(line, `subresource="/metrics"`) {
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
