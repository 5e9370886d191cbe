package scopedcache_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// An operator that stays up without rights on some of its kinds, and begins with them when it may.
func ExampleNew() {
	config := ctrl.GetConfigOrDie()
	mgr, err := ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New})
	if err != nil {
		panic(err)
	}
	// Controllers, as always.
	_ = mgr.Start(ctrl.SetupSignalHandler())
}

// The same, noticing within seconds what it may and may not any more. It needs the right to list
// and watch Roles, ClusterRoles and their bindings for that; without it rights are asked for every
// 30 seconds.
func ExampleNewWithOptions() {
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(),
		ctrl.Options{NewCache: scopedcache.NewWithOptions(scopedcache.Options{
			WatchRBAC:            true,
			AccessReviewInterval: 30 * time.Second,
			Observe: func(before scopedcache.State, now scopedcache.ScopeState) {
				ctrl.Log.Info("A scope changed", "kind", now.GVK.Kind, "scope", now.Scope.String(), "before", before, "now",
					now.State)
			},
		})})
	if err != nil {
		panic(err)
	}
	_ = mgr.Start(ctrl.SetupSignalHandler())
}

// A part of a kind by label, with a handler and reads of its own. It lives until it is released.
func ExampleHandle() {
	use := func(ctx context.Context, mgr ctrl.Manager) error {
		cached, ok := mgr.GetCache().(scopedcache.Cache)
		if !ok {
			return errors.New("the manager was made without NewCache: scopedcache.New")
		}
		owned, err := cached.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{
			Namespace:     "tenant",
			LabelSelector: labels.SelectorFromSet(labels.Set{"owner": "red"}),
		},
			scopedcache.HoldOptions{Name: "my-controller", Dependent: "uid-of-red",
				Observe: func(state scopedcache.ScopeState) {
					if state.State == scopedcache.Forbidden {
						fmt.Println("not now:", state.LastError) // tell whoever waits; do not call the cache here
					}
				}})
		if err != nil {
			return err
		}
		defer owned.Release()
		registration, err := owned.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { fmt.Println("there is", object.(client.Object).GetName()) },
			DeleteFunc: func(object any) { fmt.Println("it is gone; it may be a toolscache.DeletedFinalStateUnknown") },
		})
		if err != nil {
			return err
		}
		defer owned.RemoveEventHandler(registration)
		list := &corev1.ConfigMapList{}
		switch err := owned.List(ctx, list); {
		case apierrors.IsForbidden(err):
			fmt.Println("nothing yet:", err) // handlers are told when that changes
		case err != nil:
			return err
		}
		<-ctx.Done() // as long as it is needed
		return nil
	}
	_ = use
}

// An operator that is up but may not see all that it wants should say so: here by a check of its
// own, which may be an alert rather than a reason to restart it.
func ExampleCache() {
	use := func(mgr ctrl.Manager) error {
		return mgr.AddReadyzCheck("rights", func(*http.Request) error {
			for _, scope := range mgr.GetCache().(scopedcache.Cache).States() {
				if scope.State == scopedcache.Forbidden || scope.State == scopedcache.NotServed {
					return fmt.Errorf("%s %s is %s since %s: %w", scope.GVK.Kind, scope.Scope, scope.State,
						scope.Since.Format(time.RFC3339), scope.LastError)
				}
			}
			return nil
		})
	}
	_ = use
}

// Many caches of different identities, and one that may watch RBAC for all of them.
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
