package main

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

var connections = v1alpha1.GroupVersion.WithResource("connections")

// servedConnection returns a Connection as a state API serves it.
func servedConnection(name, state, reason string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(),
		"kind":       "Connection",
		"metadata":   map[string]any{"name": name},
		"status":     map[string]any{"state": state, "reason": reason, "message": "m", "replica": "a"},
	}}
}

// stateAPI is a state API, which fails with an error that a test sets.
type stateAPI struct {
	*dynamicfake.FakeDynamicClient
	mu  sync.Mutex
	err error // guarded by mu
}

func newStateAPI(objects ...runtime.Object) *stateAPI {
	api := &stateAPI{FakeDynamicClient: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{connections: "ConnectionList"}, objects...)}
	api.PrependReactor("list", "connections", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := api.failing()
		return err != nil, nil, err
	})
	return api
}

func (a *stateAPI) failing() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

func (a *stateAPI) fails(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// follows runs f with what follows the state API.
func (a *stateAPI) follows(t *testing.T, f func(ctx context.Context, s *served)) {
	t.Helper()
	s := newServed(a, v1alpha1.GroupVersion.Group)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	NewWithT(t).Expect(s.start(ctx, &running)).To(Succeed())
	f(ctx, s)
	cancel()
	running.Wait()
	synctest.Wait()
}

// An extension without a result for a moment is waited for. One whose state cannot be read is not
// left out.
func TestServedRows(t *testing.T) {
	for reason, state := range map[string]string{
		"Pending":                    v1alpha1.StateConnecting,
		v1alpha1.ReasonNoReplica:     v1alpha1.StateDisconnected,
		v1alpha1.ReasonReplicaSilent: v1alpha1.StateUnknown,
	} {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			unreadable := servedConnection("unreadable", "", "")
			unreadable.Object["status"] = "new"
			api := newStateAPI(servedConnection("moves", state, reason), unreadable)
			api.follows(t, func(ctx context.Context, s *served) {
				begun := time.Now()
				rows, err := s.wait(ctx, 20*time.Second)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(rows).To(HaveLen(2))
				g.Expect(rows[0].reason).To(Equal(reason))
				g.Expect([]string{rows[1].extension, rows[1].state}).To(Equal([]string{"unreadable", v1alpha1.StateUnknown}))
				g.Expect(rows[1].message).To(HavePrefix("this latchkey cannot read what the state API says: "))
				g.Expect(resultOf(rows[:1])).NotTo(Succeed())
				g.Expect(resultOf(rows[1:])).NotTo(Succeed())
				g.Expect(time.Since(begun)).To(BeNumerically("~", 20*time.Second, time.Second))

				time.AfterFunc(5*time.Second, func() {
					_ = api.Tracker().Update(connections, servedConnection("moves", v1alpha1.StateConnected, ""), "")
				})
				begun = time.Now()
				rows, err = s.wait(ctx, 20*time.Second)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(rows[0].state).To(Equal(v1alpha1.StateConnected))
				g.Expect(time.Since(begun)).To(BeNumerically("~", 5*time.Second, time.Second))
			})
		})
	}
}

// A refusal at the start is final after some seconds only, and other errors when the patience ends.
func TestServedRefusals(t *testing.T) {
	resource := connections.GroupResource()
	for text, err := range map[string]error{
		"there is no state API": apierrors.NewNotFound(resource, ""),
		"is forbidden":          apierrors.NewForbidden(resource, "", nil),
		"no replica serves":     apierrors.NewServiceUnavailable("away"),
	} {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			api := newStateAPI(servedConnection("one", v1alpha1.StateConnected, ""))
			api.fails(err)
			begun := time.Now()
			api.follows(t, func(ctx context.Context, s *served) {
				_, failed := s.wait(ctx, 20*time.Second)
				g.Expect(failed).To(MatchError(ContainSubstring(text)))
			})
			patience := refusedPatience
			if apierrors.IsServiceUnavailable(err) {
				patience = 20 * time.Second
			}
			g.Expect(time.Since(begun)).To(BeNumerically("~", patience, time.Second))

			api.fails(err)
			api.follows(t, func(ctx context.Context, s *served) {
				time.AfterFunc(time.Second, func() { api.fails(nil) })
				rows, failed := s.wait(ctx, 20*time.Second)
				g.Expect(failed).NotTo(HaveOccurred())
				g.Expect(rows).To(HaveLen(1))
			})
		})
	}
}

// When the state API goes away, what was printed is said to be of before. What it says when it is
// back is printed.
func TestServedSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		api := newStateAPI(servedConnection("one", v1alpha1.StateConnected, ""))
		events := make(chan *watch.FakeWatcher, 10)
		api.PrependWatchReactor("connections", func(clienttesting.Action) (bool, watch.Interface, error) {
			if err := api.failing(); err != nil {
				return true, nil, err
			}
			one := watch.NewFake()
			events <- one
			return true, one, nil
		})
		api.follows(t, func(ctx context.Context, s *served) {
			rows, err := s.wait(ctx, 20*time.Second)
			g.Expect(err).NotTo(HaveOccurred())
			following, stop := context.WithCancel(ctx)
			out := &testutil.Output{}
			result := make(chan error, 1)
			go func() { result <- s.follow(following, out, rows) }()
			takesAway := func(seconds time.Duration) {
				api.fails(apierrors.NewServiceUnavailable("away"))
				(<-events).Stop()
				time.Sleep(seconds * time.Second)
			}
			takesAway(5)
			api.fails(nil)
			time.Sleep(time.Minute)
			g.Expect(out.String()).To(BeEmpty(), "for a moment")
			takesAway(60)
			g.Expect(out.String()).To(MatchRegexp(
				`^\nNo answer since [0-9:]{8}, and the lines above are of then: no replica serves the state API [^\n]+\n$`))
			said := out.String()
			api.fails(nil)
			time.Sleep(time.Minute)
			g.Expect(out.String()).To(And(HavePrefix(said+"\nEXTENSION "), ContainSubstring("\none ")))
			takesAway(60)
			stop()
			g.Expect(<-result).To(MatchError(ContainSubstring("no replica serves")))
		})
	})
}
