package testenv

import (
	"context"
	"errors"
	"flag"
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

// shortLine is why a test does not run with -short.
const shortLine = "-short: tests that start a control plane or programs do not run; \"make test\" runs them"

// LongVariable is the environment variable that, if it is set, makes end-to-end tests take their
// long forms: more rounds, longer outages.
const LongVariable = "LATCHKEY_LONG_TESTS"

// Long returns how long a test goes on, or how often it does a thing: long if LongVariable is set,
// as "make soak" does, and otherwise short. The short form shows the same, less often.
func Long[T any](short, long T) T {
	if os.Getenv(LongVariable) != "" {
		return long
	}
	return short
}

// Short reports whether the tests run with -short, and if so prints why the tests of this package
// do not run. Call Short in the TestMain of a package whose tests all need a control plane. Run
// does so.
func Short() bool {
	if !flag.Parsed() {
		flag.Parse()
	}
	if testing.Short() {
		fmt.Println(shortLine)
	}
	return testing.Short()
}

// SkipIfShort skips a test with -short. The tests that call SkipIfShort start programs, such as a
// control plane, and take much longer than other tests.
func SkipIfShort(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip(shortLine)
	}
}

// Start starts a control plane that stops when the test ends. With -short the test is skipped.
func Start(tb testing.TB, options controlplane.Options) *controlplane.ControlPlane {
	tb.Helper()
	SkipIfShort(tb)
	cp, err := controlplane.Start(tb.Context(), options)
	if err != nil {
		tb.Fatalf("starting the control plane: %v", err)
	}
	tb.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			tb.Errorf("stopping the control plane: %v", err)
		}
	})
	return cp
}

// New is Start with an administrator.
func New(tb testing.TB, options controlplane.Options) *Env {
	tb.Helper()
	e := &Env{ControlPlane: Start(tb, options)}
	if err := e.connect(); err != nil {
		tb.Fatalf("connecting the administrator: %v", err)
	}
	return e
}

// Open starts a control plane with an administrator. The caller must call Stop.
func Open(ctx context.Context, options controlplane.Options) (*Env, error) {
	e := &Env{}
	if err := e.start(ctx, options); err != nil {
		return nil, err
	}
	return e, nil
}

// Run starts a control plane, sets *env, calls prepare unless it is nil, runs the tests, and stops
// the control plane. The result is the exit code. With -short no test runs.
func Run(m *testing.M, options controlplane.Options, env *Env, prepare func(context.Context) error) int {
	if Short() {
		return 0
	}
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
	if err := e.connect(); err != nil {
		return errors.Join(err, e.Stop())
	}
	return nil
}

func (e *Env) connect() (err error) {
	if e.AdminHTTP, err = rest.HTTPClientFor(e.Config()); err != nil {
		return err
	}
	e.Admin, err = client.New(e.Config(), client.Options{HTTPClient: e.AdminHTTP})
	return err
}

// apiServerWait is the goroutine that waits for the API server's process to end. A test that
// restarts the API server starts another such goroutine.
const apiServerWait = "sigs.k8s.io/controller-runtime/pkg/internal/testing/process.(*State).Start.func1"

// NewGoroutines returns the options with which goleak finds the goroutines that start from now on.
func NewGoroutines(more ...goleak.Option) []goleak.Option {
	return append([]goleak.Option{goleak.IgnoreCurrent(), goleak.IgnoreAnyFunction(apiServerWait)}, more...)
}
