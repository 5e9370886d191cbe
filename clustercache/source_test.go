package clustercache

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

func TestMain(m *testing.M) {
	// A goroutine that the metadata informers of a manager leave behind when it stops; see package test.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

func object(name, version string) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// A consumer that hangs holds up nobody, and hears of each extension once when it comes back, in its last state.
func TestSourceCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		all := &sources{}
		release := make(chan struct{})
		heard := map[string]string{}
		calls := 0
		src := newExtensionSource("slow", func(_ context.Context, o client.Object) []ctrl.Request {
			<-release
			calls++
			heard[o.GetName()] = o.GetResourceVersion()
			o.SetName("maps get copies")
			return nil
		}, all, func() []client.Object { return []client.Object{object("known", "1")} })
		queue := priorityqueue.New[ctrl.Request]("test")
		ctx, cancel := context.WithCancel(t.Context())
		g.Expect(src.Start(ctx, queue)).To(Succeed())
		synctest.Wait() // it hangs with "known"
		for i := range 1000 {
			all.changed(object("busy", fmt.Sprint(i)))
			all.changed(object("other", fmt.Sprint(i)))
		}
		close(release)
		synctest.Wait()
		g.Expect(heard).To(Equal(map[string]string{"known": "1", "busy": "999", "other": "999"}))
		g.Expect(calls).To(Equal(3))

		cancel()
		synctest.Wait()
		g.Expect(all.started).To(BeEmpty(), "a stopped source is forgotten")
		all.changed(object("busy", "after"))
		g.Expect(heard).NotTo(HaveKeyWithValue("busy", "after"))
		queue.ShutDown()
	})
}

func TestSourceSurvivesItsMapFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		all := &sources{}
		src := newExtensionSource("panics", func(_ context.Context, o client.Object) []ctrl.Request {
			if o.GetName() == "bad" {
				panic("no")
			}
			return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
		}, all, func() []client.Object { return nil })
		queue := priorityqueue.New[ctrl.Request]("test")
		ctx, cancel := context.WithCancel(t.Context())
		g.Expect(src.Start(ctx, queue)).To(Succeed())
		all.changed(object("bad", "1"))
		synctest.Wait()
		all.changed(object("good", "1"))
		synctest.Wait()
		g.Expect(queue.Len()).To(Equal(1))
		cancel()
		queue.ShutDown()
		synctest.Wait()
	})
}

func TestSourceNeedsAMapFunction(t *testing.T) {
	src := newExtensionSource[ctrl.Request]("none", nil, &sources{}, nil)
	NewWithT(t).Expect(src.Start(t.Context(), nil)).To(MatchError(ContainSubstring("no map function")))
	NewWithT(t).Expect(src.String()).To(ContainSubstring("none"))
}

func TestOptionsAreValidated(t *testing.T) {
	for problem, options := range map[string]Options{
		"UserAgent must be set": {},
		"must not be negative":  {Client: ClientOptions{UserAgent: "x", Timeout: -1}},
		"must be positive":      {Client: ClientOptions{UserAgent: "x"}, ConnectBackoff: wait.Backoff{Steps: 1}},
	} {
		NewWithT(t).Expect(options.validate()).To(MatchError(ContainSubstring(problem)))
	}
	NewWithT(t).Expect((&Options{Client: ClientOptions{UserAgent: "x"}, ConnectBackoff: wait.Backoff{Duration: 1}}).validate()).To(Succeed())
}
