package clustercache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// This is the minimum that a host operator needs. The README shows these lines.
func Example() {
	type reconciler struct{ cc clustercache.ClusterCache }

	setup := func(ctx context.Context, mgr manager.Manager, ctl controller.Controller) error {
		cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
			AllowIdentity: clustercache.GuardedByAdmission, // kubectl apply -f config/admission
		}, controller.Options{})
		if err != nil {
			return err
		}
		return ctl.Watch(cc.GetExtensionSource("my-controller", clustercache.EnqueueExtension)) // connects, disconnects
	}
	reconcile := func(ctx context.Context, r reconciler, extension client.Object,
		configMap *corev1.ConfigMap) (ctrl.Result,
		error) {
		c, err := r.cc.For(ctx, extension).GetClient(ctx) // extension as this Reconcile has read it
		if errors.Is(err, clustercache.ErrNotConnected) {
			return ctrl.Result{}, nil // the source calls again
		} else if err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, c.Create(ctx, configMap) // as the extension's ServiceAccount, and as no one else
	}
	_, _ = setup, reconcile
}

// Extensions of a namespaced kind that name a ServiceAccount of their own namespace need no guard.
func ExampleSetupWithManager() {
	setup := func(ctx context.Context, mgr manager.Manager, kind client.Object) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Object: kind,
			Credentials: credential.ServiceAccountTokens(credential.ServiceAccountOptions{
				NamespacePath: "metadata.namespace",
				NamePath:      "spec.serviceAccountName",
			}),
			Client: clustercache.ClientOptions{UserAgent: "my-operator/v1"},
		}, controller.Options{})
	}
	_ = setup
}

// For workload clusters, every object has a kubeconfig in a Secret of its namespace,
// "<name>-kubeconfig".
func ExampleSetupWithManager_kubeconfigSecrets() {
	setup := func(ctx context.Context, mgr manager.Manager, kind client.Object) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Object:      kind,
			Credentials: credential.KubeconfigSecrets(credential.KubeconfigOptions{}),
			Client:      clustercache.ClientOptions{UserAgent: "my-operator/v1"},
		}, controller.Options{})
	}
	_ = setup
}

// An operator that may impersonate needs no tokens: requests carry its own credential and the
// ServiceAccount's name.
func ExampleSetupWithManager_impersonation() {
	setup := func(ctx context.Context, mgr manager.Manager) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Credentials:   credential.Impersonation(credential.ImpersonationOptions{}),
			AllowIdentity: clustercache.GuardedByAdmission, // kubectl apply -f config/admission
			Client:        clustercache.ClientOptions{UserAgent: "my-operator/v1"},
		}, controller.Options{})
	}
	_ = setup
}

// The author of a host operator may decide which extension may act as which ServiceAccount. Here,
// an extension may act as the ServiceAccounts of the namespace that its name determines.
func ExampleOptions_allowIdentity() {
	options := clustercache.Options{
		AllowIdentity: func(_ context.Context, extension client.Object, serviceAccount types.NamespacedName) error {
			if serviceAccount.Namespace == "tenant-"+extension.GetName() {
				return nil
			}
			return fmt.Errorf("%s may only act as ServiceAccounts of namespace tenant-%s", extension.GetName(),
				extension.GetName())
		},
	}
	red := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red"}}
	fmt.Println(options.AllowIdentity(context.Background(), red,
		types.NamespacedName{Namespace: "kube-system", Name: "default"}))
	// Output: red may only act as ServiceAccounts of namespace tenant-red
}

// A controller with a finalizer deletes the content of an extension as the extension's identity. If
// the identity is gone, this controller waits, and a condition says why.
func ExampleClusterCache_deletion() {
	const finalizer = "example.com/content"
	type operator struct {
		client.Client // the host operator's own
		connections   clustercache.ClusterCache
	}
	reconcileDeletion := func(ctx context.Context, o operator, extension client.Object, content []client.Object,
		setCondition func(metav1.Condition) error) (ctrl.Result, error) {
		c, err := o.connections.For(ctx, extension).GetClient(ctx)
		for _, object := range content {
			if err == nil {
				err = client.IgnoreNotFound(c.Delete(ctx, object))
			}
		}
		if err != nil {
			condition := clustercache.Condition(err, extension.GetGeneration())
			if condition.Status == metav1.ConditionTrue { // connected, but for example Forbidden
				condition.Type, condition.Status, condition.Reason = "Deleted", metav1.ConditionFalse, "Failed"
				condition.Message = err.Error()
				return ctrl.Result{}, errors.Join(err, setCondition(condition))
			}
			return ctrl.Result{}, setCondition(condition) // the extension source calls again
		}
		if controllerutil.RemoveFinalizer(extension, finalizer) {
			err = o.Update(ctx, extension)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	_ = reconcileDeletion
}

// The error contains the reason why an extension is not connected.
func ExampleClusterCache_GetClient() {
	explain := func(ctx context.Context, cc clustercache.ClusterCache, extension client.ObjectKey) string {
		_, err := cc.GetClient(ctx, extension)
		var notConnected *clustercache.NotConnectedError
		if errors.As(err, &notConnected) {
			return fmt.Sprintf("%s since %s: %v", notConnected.Reason, notConnected.Since, notConnected.Err)
		}
		return "connected"
	}
	_ = explain
}

// This controller receives events about the Secrets that an extension's identity may list and watch
// in one namespace.
func ExampleClusterCache_Watch() {
	watch := func(ctx context.Context, cc clustercache.ClusterCache, ctl controller.Controller,
		extension client.ObjectKey) error {
		return cc.Watch(ctx, extension, clustercache.NewWatcher(clustercache.WatcherOptions{
			Name:    "my-controller/secrets",
			Watcher: ctl,
			Kind:    &corev1.Secret{},
			Scope:   clustercache.Scope{Namespace: "team-red"},
			EventHandler: handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
				return []ctrl.Request{{NamespacedName: extension}}
			}),
		}))
	}
	_ = watch
}

// Every controller can receive an event when an extension connects or disconnects.
func ExampleClusterCache_GetExtensionSource() {
	setup := func(cc clustercache.ClusterCache, ctl controller.Controller) error {
		return ctl.Watch(cc.GetExtensionSource("my-controller",
			func(_ context.Context, extension client.Object) []ctrl.Request {
				return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(extension)}}
			}))
	}
	_ = setup
}

// This controller receives events when the content of an extension changes. WatchContent watches
// exactly the kinds of the content's objects, in their namespaces. Call WatchContent whenever the
// content is known. Kinds that have left the content are no longer watched.
func ExampleClusterCache_WatchContent() {
	watch := func(ctx context.Context, cc clustercache.ClusterCache, ctl controller.Controller,
		extension client.ObjectKey, content []client.Object) error {
		return cc.WatchContent(ctx, extension, clustercache.NewContentWatch(clustercache.ContentWatchOptions{
			Name:    "my-controller/content",
			Watcher: ctl,
			Objects: content,
			EventHandler: handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
				return []ctrl.Request{{NamespacedName: extension}}
			}),
			OnError: func(ctx context.Context, err clustercache.WatchError) {
				log.FromContext(ctx).Info("The content cannot be watched", "kind", err.Kind, "state", err.State, "error",
					err.Err)
			},
		}))
	}
	_ = watch
}

// With this option a controller also receives an event when an extension had no success for five
// minutes, even before the extension is disconnected.
func ExampleWatchForProbeFailure() {
	setup := func(cc clustercache.ClusterCache, ctl controller.Controller, toRequests handler.MapFunc) error {
		return ctl.Watch(cc.GetExtensionSource("my-controller", toRequests,
			clustercache.WatchForProbeFailure(5*time.Minute)))
	}
	_ = setup
}

// Controllers whose requests are of another type use TypedExtensionSource.
func ExampleTypedExtensionSource() {
	type request struct{ Tenant string }
	setup := func(cc clustercache.ClusterCache, ctl controller.TypedController[request]) error {
		return ctl.Watch(clustercache.TypedExtensionSource(cc, "my-controller",
			func(_ context.Context, extension client.Object) []request {
				return []request{{Tenant: extension.GetName()}}
			}))
	}
	_ = setup
}

// Several operators may share the extensions, and report on them in Events and metrics.
func ExampleOptions() {
	setup := func(ctx context.Context, mgr manager.Manager) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			WatchFilterValue: "blue", // only extensions with the label clustercache.WatchLabel=blue
			Filter:           func(extension client.Object) bool { return extension.GetDeletionTimestamp().IsZero() },
			AllowIdentity:    clustercache.GuardedByAdmission,
			Client:           clustercache.ClientOptions{UserAgent: "my-operator/v1"},
			EventRecorder:    mgr.GetEventRecorder("my-operator"),
			Metrics:          clustercache.MetricsOptions{PerExtension: true},
		}, controller.Options{})
	}
	_ = setup
}

// The cache of each extension's connection has only the Secrets with the label of that extension.
func ExampleCacheOverrides() {
	setup := func(ctx context.Context, mgr manager.Manager) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			AllowIdentity: clustercache.GuardedByAdmission,
			Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
			Cache:         onlyTheirSecrets,
		}, controller.Options{})
	}
	_ = setup
}

var onlyTheirSecrets = clustercache.CacheOptions{
	PerExtension: func(extension client.Object) clustercache.CacheOverrides {
		owner := extension.GetName()
		return clustercache.CacheOverrides{
			Version: "owner=" + owner,
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Secret{}: {Label: labels.SelectorFromSet(labels.Set{"owner": owner})},
			},
		}
	},
}

// The tenants of this operator have Roles in a few namespaces, which their extensions name.
func ExampleCacheOverrides_namespaces() {
	setup := func(ctx context.Context, mgr manager.Manager) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			AllowIdentity: clustercache.GuardedByAdmission,
			Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
			Cache:         onlyTheirNamespaces,
		}, controller.Options{})
	}
	_ = setup
}

var onlyTheirNamespaces = clustercache.CacheOptions{
	PerExtension: func(extension client.Object) clustercache.CacheOverrides {
		names := strings.Fields(extension.GetAnnotations()["example.com/namespaces"])
		namespaces := map[string]cache.Config{extension.GetNamespace(): {}}
		for _, name := range names {
			namespaces[name] = cache.Config{}
		}
		return clustercache.CacheOverrides{
			Version:  "namespaces=" + strings.Join(names, ","),
			ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Namespaces: namespaces}},
		}
	},
}

// A reconciler of this operator finds what it has just written.
func ExampleClientCacheOptions() {
	setup := func(ctx context.Context, mgr manager.Manager) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			AllowIdentity: clustercache.GuardedByAdmission,
			Client:        readingItsWrites,
		}, controller.Options{})
	}
	_ = setup
}

var readingItsWrites = clustercache.ClientOptions{
	UserAgent: "my-operator",
	Cache:     clustercache.ClientCacheOptions{ReadYourWrites: true},
}

// A watch of two namespaces, in each of which the extension's identity has a Role.
func ExampleWatcherOptions_namespaces() {
	register := func(ctx context.Context, cc clustercache.ClusterCache, controller controller.Controller,
		extension client.ObjectKey) error {
		watch := clustercache.NewWatcher(clustercache.WatcherOptions{
			Name:         "both-teams",
			Watcher:      controller,
			Kind:         &corev1.ConfigMap{},
			EventHandler: clustercache.EnqueueFor(extension),
			Scope:        clustercache.Scope{Namespaces: scopedcache.InNamespaces("team-red", "team-blue")},
		})
		return cc.Watch(ctx, extension, watch)
	}
	_ = register
}

// A content is applied if nothing that it takes is missing, and the condition says what is.
func ExampleBound_checkPermissions() {
	type status struct{ Conditions []metav1.Condition }
	mayApply := func(ctx context.Context, connection clustercache.Bound, objects []client.Object, status *status,
		generation int64) error {
		report, err := connection.CheckPermissions(ctx, clustercache.PermissionCheck{Objects: objects})
		if clustercache.ReportedElsewhere(err) {
			return err
		}
		meta.SetStatusCondition(&status.Conditions, clustercache.PermissionsCondition(report, err, generation))
		if err != nil {
			return err
		}
		if err := report.Err(); err != nil {
			return err // all that is missing, and apierrors.IsForbidden
		}
		return nil
	}
	_ = mayApply
}

// Sets of namespaces that change.
var (
	teamRed    = clustercache.Scope{Namespaces: scopedcache.NamespacesWithLabels(labels.SelectorFromSet(red))}
	whereItMay = clustercache.Scope{Namespaces: scopedcache.WhereverAllowed()}
)

var red = labels.Set{"team": "red"}

// WatchContent and Hold take such sets, too.
func ExampleContentWatchOptions_namespaces() {
	scopes := []clustercache.Scope{teamRed, whereItMay}
	watch := func(controller controller.Controller, content []client.Object, n int) clustercache.ContentWatch {
		return clustercache.NewContentWatch(clustercache.ContentWatchOptions{
			Name:         "content",
			Watcher:      controller,
			Objects:      content,
			EventHandler: &handler.EnqueueRequestForObject{},
			Scope:        scopes[n],
		})
	}
	_ = watch
}
