package clustercache

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// EnqueueExtension is a map function for GetExtensionSource: it requests a reconcile of the
// extension.
func EnqueueExtension(_ context.Context, extension client.Object) []ctrl.Request {
	return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(extension)}}
}

// EnqueueFor returns an event handler for Watch and WatchContent that requests a reconcile of the
// extension, whatever changed.
func EnqueueFor(extension client.ObjectKey) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: extension}}
	})
}
