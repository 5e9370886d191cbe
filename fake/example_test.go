package fake_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
)

// reconciler is an example of a controller: Reconcile creates a ConfigMap for every extension.
type reconciler struct{ cc clustercache.ClusterCache }

var content = client.ObjectKey{Namespace: "team-red", Name: "content"}

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	c, err := r.cc.GetClient(ctx, req.NamespacedName)
	if errors.Is(err, clustercache.ErrNotConnected) {
		return ctrl.Result{}, nil // the source calls again
	} else if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{},
		client.IgnoreAlreadyExists(c.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: content.Namespace, Name: content.Name}}))
}

// The README shows this test.
func TestReconcile(t *testing.T) {
	c, red := clientfake.NewClientBuilder().Build(), client.ObjectKey{Name: "red"}
	cc := fake.NewFakeCache(c, red)
	r := &reconciler{cc: cc}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: red}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), content, &corev1.ConfigMap{}); err != nil {
		t.Error(err) // it was not created
	}
	cc.Disconnect(red, clustercache.ReasonUnreachable)
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: red}); err != nil {
		t.Error(err) // not being connected is no error
	}
}

// Sources deliver to a real queue.
func ExampleNewFakeEmptyCache() {
	cc := fake.NewFakeEmptyCache()
	defer cc.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	queue := priorityqueue.New[ctrl.Request]("my-controller")
	defer queue.ShutDown()
	src := cc.GetExtensionSource("my-controller", clustercache.EnqueueExtension)
	if err := src.Start(ctx, queue); err != nil {
		fmt.Println(err)
	}

	cc.Connect(client.ObjectKey{Name: "red"}, clientfake.NewClientBuilder().Build())
	request, _ := queue.Get()
	fmt.Println("reconcile", request.Name)
	// Output: reconcile red
}

// A test of what a controller's sources and watches lead to.
func TestRequests(t *testing.T) {
	cc := fake.NewFakeEmptyCache()
	t.Cleanup(cc.Close)
	c := fake.NewController(t)
	if err := c.Watch(cc.GetExtensionSource("my-controller", clustercache.EnqueueExtension)); err != nil {
		t.Fatal(err)
	}
	cc.Connect(client.ObjectKey{Name: "red"}, clientfake.NewClientBuilder().Build())
	if request, err := c.Next(t.Context()); err != nil || request.Name != "red" {
		t.Error(request, err)
	}
}
