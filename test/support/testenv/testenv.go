package testenv

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
)

// Patience bounds every wait. Patience is a safety bound for a loaded machine, not an expected
// duration.
const Patience = 60 * time.Second

// Env is a control plane and its administrator.
type Env struct {
	*controlplane.ControlPlane
	Admin     client.Client
	AdminHTTP *http.Client
}

// Run starts a control plane, sets *env, calls prepare unless it is nil, runs the tests, and stops
// the control plane. The result is the exit code.
func Run(m *testing.M, options controlplane.Options, env *Env, prepare func(context.Context) error) int {
	ctx := context.Background()
	if err := env.start(ctx, options); err != nil {
		fmt.Fprintln(os.Stderr, "starting the control plane:", err)
		return 1
	}
	defer func() { _ = env.Stop() }()
	if prepare != nil {
		if err := prepare(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "preparing the control plane:", err)
			return 1
		}
	}
	return m.Run()
}

func (e *Env) start(ctx context.Context, options controlplane.Options) (err error) {
	if e.ControlPlane, err = controlplane.Start(ctx, options); err != nil {
		return err
	}
	if e.AdminHTTP, err = rest.HTTPClientFor(e.Config()); err == nil {
		e.Admin, err = client.New(e.Config(), client.Options{HTTPClient: e.AdminHTTP})
	}
	if err != nil {
		_ = e.Stop()
	}
	return err
}

// apiServerWait is the goroutine that waits for the API server's process to end. A test that
// restarts the API server starts another such goroutine.
const apiServerWait = "sigs.k8s.io/controller-runtime/pkg/internal/testing/process.(*State).Start.func1"

// NewGoroutines returns the options with which goleak finds the goroutines that start from now on.
func NewGoroutines(more ...goleak.Option) []goleak.Option {
	return append([]goleak.Option{goleak.IgnoreCurrent(), goleak.IgnoreAnyFunction(apiServerWait)}, more...)
}
