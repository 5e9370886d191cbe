package contentoperator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/clustercache"
)

const (
	name = "contentoperator"

	// Connected is the condition type that reports whether a connection acts as the extension's
	// ServiceAccount.
	Connected = clustercache.ConditionConnected
	// Installed is the condition type that reports whether the operator has applied all of the
	// content.
	Installed = "Installed"

	// ownerLabel marks the objects that were applied for an extension. The value is the UID of the
	// extension, because a name may be too long for a label.
	ownerLabel = "contentoperator.latchkey.dev/extension"
)

// reconciler installs the content of extensions.
type reconciler struct {
	extensions  client.Reader            // cached; as the operator itself
	status      client.SubResourceWriter // of the extensions; as the operator itself
	connections clustercache.ClusterCache
	controller  clustercache.SourceWatcher[reconcile.Request]
	applied     sync.Map // what was applied last, by the name of the extension
}

// appliedContent is a version of a content, and for which object it was applied.
type appliedContent struct {
	extension, content types.UID
	version            string
}

// SetupWithManager adds the content operator to the manager. The connections must have
// Options.Permissions.Record: the operator waits for permissions that are granted, and does not
// poll.
func SetupWithManager(mgr manager.Manager, connections clustercache.ClusterCache, options controller.Options) error {
	r := &reconciler{extensions: mgr.GetCache(), status: mgr.GetClient().Status(), connections: connections}
	options.Reconciler = r
	if options.RateLimiter == nil { // short delays, because a missing permission may be granted soon
		options.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](500*time.Millisecond,
			30*time.Second)
	}
	var err error
	if r.controller, err = controller.New(name, mgr, options); err != nil {
		return err
	}
	extensions := source.Kind(mgr.GetCache(), newExtension(),
		&handler.TypedEnqueueRequestForObject[*unstructured.Unstructured]{},
		predicate.TypedGenerationChangedPredicate[*unstructured.Unstructured]{})
	if err := r.controller.Watch(extensions); err != nil {
		return err
	}
	// The source requests a reconcile when an extension connects or disconnects, stays disconnected
	// for another reason, or is granted what it was refused.
	return r.controller.Watch(connections.GetExtensionSource(name, clustercache.EnqueueExtension))
}

func newExtension() *unstructured.Unstructured {
	extension := &unstructured.Unstructured{}
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	return extension
}

// Reconcile applies one extension's content to the cluster and reports the result in its
// conditions. While the extension is not connected, or is connected as another ServiceAccount,
// Reconcile returns no error: the extension source requests the next reconcile.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	extension := newExtension()
	if err := r.extensions.Get(ctx, req.NamespacedName, extension); err != nil {
		if apierrors.IsNotFound(err) {
			r.applied.Delete(req.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	permissions, installErr := r.install(ctx, extension)
	if clustercache.ReportedElsewhere(installErr) {
		return ctrl.Result{}, nil // another reconcile follows, here or on the replica that has the extension
	}
	if err := r.report(ctx, extension, permissions, installErr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if errors.Is(installErr, clustercache.ErrNotConnected) {
		return ctrl.Result{}, nil // the extension source requests a reconcile after the connect
	}
	if permissions.Err() != nil {
		return ctrl.Result{}, nil // and when something that is missing is granted
	}
	return ctrl.Result{}, installErr
}

// install reads, applies and watches the content, all of it as the extension's ServiceAccount. It
// returns what was asked about permissions, nil if nothing was.
func (r *reconciler) install(ctx context.Context, extension *unstructured.Unstructured) (
	*clustercache.PermissionReport, error) {
	key := client.ObjectKeyFromObject(extension)
	// The extension may already name another ServiceAccount than the connection still acts as. The
	// content must not be applied with the permissions of the old one, so For binds the calls to
	// the extension as it was read here.
	connection := r.connections.For(ctx, extension)
	c, err := connection.GetClient(ctx)
	if err != nil {
		return nil, err
	}
	namespace, _, _ := unstructured.NestedString(extension.Object, "spec", "namespace")

	content := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key.Name}}
	// The cached read below uses the informer of this watch, so a Role with resourceNames suffices.
	isContent := clustercache.Scope{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name)}
	if err := r.watch(ctx, connection, extension, "manifests", isContent, content); err != nil {
		return nil, err
	}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: key.Name}, content); err != nil {
		return nil, fmt.Errorf("reading the content: %w", err)
	}
	manifests, err := parse(content)
	if err != nil {
		return nil, err
	}

	for _, object := range manifests {
		if object.GetNamespace() == "" {
			object.SetNamespace(namespace)
		}
		objectLabels := object.GetLabels()
		if objectLabels == nil {
			objectLabels = map[string]string{}
		}
		objectLabels[ownerLabel] = string(extension.GetUID())
		object.SetLabels(objectLabels)
	}
	permissions, err := r.checkPermissions(ctx, connection, extension, content, manifests)
	if err != nil {
		return permissions, err
	}
	var kinds []client.Object
	for _, object := range manifests {
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(name),
			client.ForceOwnership); err != nil {
			return permissions, fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		kind := &metav1.PartialObjectMetadata{} // enough to notice drift
		kind.SetGroupVersionKind(object.GroupVersionKind())
		kind.SetNamespace(object.GetNamespace())
		kinds = append(kinds, kind)
	}
	r.applied.Store(key.Name, appliedContent{extension.GetUID(), content.UID, content.ResourceVersion})
	// From here on the watches cover exactly the kinds and namespaces of the content, and only
	// objects with the owner label. So the API server sends, and the cache keeps, no other objects.
	ownScope := clustercache.Scope{
		LabelSelector: labels.SelectorFromSet(labels.Set{ownerLabel: string(extension.GetUID())}),
	}
	return permissions, r.watch(ctx, connection, extension, "content", ownScope, kinds...)
}

// checkPermissions returns an error that names all that the ServiceAccount lacks to apply and watch
// a new content. So nothing is half applied, and an administrator sees everything at once, in the
// condition and by "kubectl latchkey role --missing".
func (r *reconciler) checkPermissions(ctx context.Context, connection clustercache.Bound, extension client.Object,
	content *corev1.ConfigMap, manifests []*unstructured.Unstructured) (*clustercache.PermissionReport, error) {
	applied, _ := r.applied.Load(extension.GetName())
	if applied == (appliedContent{extension.GetUID(), content.UID, content.ResourceVersion}) {
		return nil, nil
	}
	check := clustercache.PermissionCheck{Verbs: []string{"list", "watch", "create", "patch"}}
	for _, object := range manifests {
		check.Objects = append(check.Objects, object)
	}
	report, err := connection.CheckPermissions(ctx, check)
	if err != nil {
		return nil, fmt.Errorf("checking the permissions: %w", err)
	}
	return report, report.Err()
}

// watch makes events about objects of these kinds reconcile the extension. kinds replaces the kinds
// of the previous call with the same purpose: watches of kinds that are not in the list end. All
// watches end when the extension is deleted or recreated.
func (r *reconciler) watch(ctx context.Context, connection clustercache.Bound, extension client.Object, purpose string,
	scope clustercache.Scope, kinds ...client.Object) error {
	key := client.ObjectKeyFromObject(extension)
	return connection.WatchContent(ctx, clustercache.NewContentWatch(clustercache.ContentWatchOptions{
		Name:         name + "/" + purpose,
		Watcher:      r.controller,
		Objects:      kinds,
		Scope:        scope,
		Dependent:    extension.GetUID(),
		EventHandler: clustercache.EnqueueFor(key),
		// A watch that the ServiceAccount has no permission for begins once the permission is
		// granted. Until then, drift of these objects goes unnoticed.
		OnError: func(ctx context.Context, problem clustercache.WatchError) {
			log.FromContext(ctx).Info("A watch changed its state", "extension", key, "kind", problem.Kind, "state",
				problem.State, "error", problem.Err)
		},
	}))
}

// parse returns the manifests of all keys, in the order of the keys. The error names the key with
// the invalid manifest.
func parse(content *corev1.ConfigMap) (manifests []*unstructured.Unstructured, err error) {
	keys := make([]string, 0, len(content.Data))
	for key := range content.Data {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		for documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(content.Data[key]), 4096); ; {
			object := &unstructured.Unstructured{}
			if err := documents.Decode(&object.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("parsing key %s of the content: %w", key, err)
			}
			if len(object.Object) == 0 {
				continue
			}
			if object.GetKind() == "" || object.GetName() == "" {
				return nil, fmt.Errorf("parsing key %s of the content: document without kind or name", key)
			}
			manifests = append(manifests, object)
		}
	}
	return manifests, nil
}

// report writes the conditions to the status of the extension, if they changed.
func (r *reconciler) report(ctx context.Context, extension *unstructured.Unstructured,
	permissions *clustercache.PermissionReport, installErr error) error {
	var status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	}
	if present, ok := extension.Object["status"].(map[string]any); ok {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(present, &status); err != nil {
			return fmt.Errorf("reading the status: %w", err)
		}
	}
	changed := false
	latest := conditions(installErr)
	if permissions != nil {
		latest = append(latest, clustercache.PermissionsCondition(permissions, nil, extension.GetGeneration()))
	}
	for _, condition := range latest {
		condition.ObservedGeneration = extension.GetGeneration()
		changed = meta.SetStatusCondition(&status.Conditions, condition) || changed
	}
	if !changed {
		return nil
	}
	newStatus, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("converting the status: %w", err)
	}
	patch := newExtension()
	patch.SetName(extension.GetName())
	patch.Object["status"] = newStatus
	return r.status.Apply(ctx, client.ApplyConfigurationFromUnstructured(patch), client.FieldOwner(name),
		client.ForceOwnership)
}

// conditions returns the conditions for the error of an attempt to install. A nil error is success.
func conditions(err error) []metav1.Condition {
	connected := clustercache.Condition(err, 0)
	switch {
	case err == nil:
		return []metav1.Condition{connected, {Type: Installed, Status: metav1.ConditionTrue, Reason: "Applied"}}
	case connected.Status != metav1.ConditionTrue:
		return []metav1.Condition{
			connected,
			{
				Type:    Installed,
				Status:  metav1.ConditionUnknown,
				Reason:  "NotConnected",
				Message: "the installed content is unknown while the extension is not connected",
			},
		}
	default:
		reason := string(apierrors.ReasonForError(err)) // Forbidden, NotFound, …
		if reason == "" {
			reason = "Failed"
		}
		return []metav1.Condition{
			connected, {Type: Installed, Status: metav1.ConditionFalse, Reason: reason, Message: err.Error()},
		}
	}
}
