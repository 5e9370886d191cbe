package scopedcache_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// This operator stays up without access to some of its kinds. Its controllers for these kinds start
// when access is granted.
func ExampleNew() {
	config := ctrl.GetConfigOrDie()
	mgr, err := ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New})
	if err != nil {
		panic(err)
	}
	// Add the controllers here, as always.
	_ = mgr.Start(ctrl.SetupSignalHandler())
}

// The reads of this operator's client include what the client itself wrote before.
func ExampleNewClient() {
	config := ctrl.GetConfigOrDie()
	mgr, err := ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New, NewClient: scopedcache.NewClient})
	if err != nil {
		panic(err)
	}
	_ = mgr.Start(ctrl.SetupSignalHandler())
}

// This operator notices within seconds when access is granted or revoked. For that, it needs
// permission to list and watch Roles, ClusterRoles and their bindings. Without that permission the
// cache reviews access every 30 seconds.
func ExampleNewWithOptions() {
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(),
		ctrl.Options{NewCache: scopedcache.NewWithOptions(scopedcache.Options{
			WatchRBAC:            true,
			AccessReviewInterval: 30 * time.Second,
			OnStateChange: func(before scopedcache.State, now scopedcache.ScopeState) {
				ctrl.Log.Info("A scope changed", "kind", now.GVK.Kind, "scope", now.Scope.String(), "before", before, "now",
					now.State)
			},
		})})
	if err != nil {
		panic(err)
	}
	_ = mgr.Start(ctrl.SetupSignalHandler())
}

// This handle selects objects of a kind by label, receives their events, and reads them. The scope
// ends when the handle is released.
func ExampleHandle() {
	use := func(ctx context.Context, mgr ctrl.Manager) error {
		scoped, ok := mgr.GetCache().(scopedcache.Cache)
		if !ok {
			return errors.New("the manager was created without NewCache: scopedcache.New")
		}
		handle, err := scoped.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{
			Namespace:     "tenant",
			LabelSelector: labels.SelectorFromSet(labels.Set{"owner": "red"}),
		},
			scopedcache.HoldOptions{
				Name:      "my-controller",
				Dependent: "uid-of-red",
				OnStateChange: func(state scopedcache.ScopeState) {
					if state.State == scopedcache.StateForbidden {
						fmt.Println("no access:", state.LastError) // do not call the cache here
					}
				},
			})
		if err != nil {
			return err
		}
		defer handle.Release()
		registration, err := handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { fmt.Println("added", object.(client.Object).GetName()) },
			DeleteFunc: func(object any) { fmt.Println("deleted; object may be a toolscache.DeletedFinalStateUnknown") },
		})
		if err != nil {
			return err
		}
		defer handle.RemoveEventHandler(registration)
		list := &corev1.ConfigMapList{}
		switch err := handle.List(ctx, list); {
		case apierrors.IsForbidden(err):
			fmt.Println("no access yet:", err) // handlers receive events when access is granted
		case err != nil:
			return err
		}
		<-ctx.Done() // as long as the handle is needed
		return nil
	}
	_ = use
}

// This operator reports by a readiness check that it lacks access to a kind that it needs. A
// failing readiness check removes the Pod from its Services, webhooks included, and stops a
// rollout. An alert may be better.
func ExampleReadyCheck() {
	use := func(mgr ctrl.Manager) error {
		return mgr.AddReadyzCheck("permissions",
			scopedcache.ReadyCheck(mgr.GetCache(), mgr.GetScheme(), &corev1.Secret{}, &corev1.ConfigMap{}))
	}
	_ = use
}

// Two caches of different identities at one API server keep the objects that both see only once.
func ExampleNewObjectPool() {
	run := func(ctx context.Context, tenantA, tenantB *rest.Config) error {
		options := scopedcache.Options{ObjectPool: scopedcache.NewObjectPool()}
		group, ctx := errgroup.WithContext(ctx)
		for _, config := range []*rest.Config{tenantA, tenantB} {
			c, err := scopedcache.NewWithOptions(options)(config, cache.Options{})
			if err != nil {
				return err
			}
			group.Go(func() error { return c.Start(ctx) })
		}
		return group.Wait()
	}
	_ = run
}

// Here, many caches have different identities, and one identity watches RBAC for all of them.
func ExampleNewRBACWatcher() {
	use := func(mgr ctrl.Manager, tenant *rest.Config) (cache.Cache, error) {
		events, err := scopedcache.NewRBACWatcher(mgr.GetConfig(),
			cache.Options{HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper()}, scopedcache.Options{})
		if err != nil {
			return nil, err
		}
		if err := mgr.Add(events); err != nil {
			return nil, err
		}
		return scopedcache.NewWithOptions(scopedcache.Options{RBACWatcher: events})(tenant, cache.Options{})
	}
	_ = use
}

// Here, many caches have different identities, and one identity sees the labels of namespaces for
// all of them.
func ExampleNewNamespaceWatcher() {
	use := func(mgr ctrl.Manager, tenant *rest.Config) (cache.Cache, error) {
		namespaces, err := scopedcache.NewNamespaceWatcher(mgr.GetConfig(),
			cache.Options{HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper()}, scopedcache.Options{})
		if err != nil {
			return nil, err
		}
		if err := mgr.Add(namespaces); err != nil {
			return nil, err
		}
		return scopedcache.NewWithOptions(scopedcache.Options{NamespaceWatcher: namespaces})(tenant, cache.Options{})
	}
	_ = use
}

// This controller watches ConfigMaps wherever the operator may. Its manager's cache needs
// WatchRBAC, unless the operator may everywhere.
func ExampleWhereverAllowed() {
	watch := func(ctx context.Context, mgr ctrl.Manager, ctl controller.Controller) error {
		handle, err := mgr.GetCache().(scopedcache.Cache).Hold(ctx, &corev1.ConfigMap{},
			scopedcache.Scope{Namespaces: scopedcache.WhereverAllowed()}, scopedcache.HoldOptions{Name: "my-controller"})
		if err != nil {
			return err
		}
		return ctl.Watch(&source.Informer{Informer: handle, Handler: &handler.EnqueueRequestForObject{}})
	}
	readWhatCanBeRead := func(ctx context.Context, handle *scopedcache.Handle) (all []corev1.ConfigMap, err error) {
		for _, member := range handle.Members() { // one for each namespace, or a single one of all
			list := &corev1.ConfigMapList{}
			if err := handle.List(ctx, list, client.InNamespace(member.Scope.Namespace)); err != nil {
				continue // member.LastError says why
			}
			all = append(all, list.Items...)
		}
		return all, nil
	}
	_, _ = watch, readWhatCanBeRead
}

// Managers in one process that talk to one API server can share the limit of its lists.
func ExampleNewListLimit() {
	lists := scopedcache.NewListLimit(10)
	newManager := func(config *rest.Config) (ctrl.Manager, error) {
		return ctrl.NewManager(config, ctrl.Options{
			NewCache: scopedcache.NewWithOptions(scopedcache.Options{ListLimit: lists}),
		})
	}
	_ = newManager
}
