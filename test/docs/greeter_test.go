package docs

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
)

// The first test of docs/guide-testing.md.

func TestGreeter(t *testing.T) {
	blue := client.ObjectKey{Namespace: "team-blue", Name: "blue"}
	configMaps := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	tenant := clientfake.NewClientBuilder().Build() // the cluster, as the tenant sees it
	cc := fake.NewFakeCache(tenant, blue)
	t.Cleanup(cc.Close)
	events := fake.NewController(t) // records what the sources request
	if err := events.Watch(cc.GetExtensionSource("greeter", clustercache.EnqueueExtension)); err != nil {
		t.Fatal(err)
	}
	r, result := &greeter{cc}, ctrl.Result{}
	reconcile := func() { // what an event requests
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		request, err := events.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if result, err = r.Reconcile(ctx, request); err != nil {
			t.Fatal(err)
		}
	}
	get := func() error {
		key := client.ObjectKey{Namespace: "team-blue", Name: "blue-greeting"}
		return tenant.Get(t.Context(), key, &corev1.ConfigMap{})
	}

	cc.ForbidWrites(blue, configMaps, "team-blue")
	reconcile()
	if err := get(); !apierrors.IsNotFound(err) || result.RequeueAfter == 0 {
		t.Fatal("written without permission, or not tried again:", err, result)
	}
	cc.AllowWrites(blue, configMaps, "team-blue")
	reconcile()
	if err := get(); err != nil {
		t.Fatal(err)
	}
	cc.Disconnect(blue, clustercache.ReasonServiceAccountNotFound)
	if reconcile(); result != (ctrl.Result{}) {
		t.Fatal("the source calls again: ", result)
	}
}
