package docs

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// setupForOLM and watchApplied are the programs of docs/migrating-from-contentmanager.md. What was
// there before was internal to its module, so no program with it compiles elsewhere.
func setupForOLM(ctx context.Context, mgr manager.Manager) (clustercache.ClusterCache, error) {
	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Object:        clustercache.OLMClusterExtension(),
		Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
		AllowIdentity: clustercache.GuardedByAdmission, // kubectl apply -f config/admission-olm
	}, controller.Options{})
	return cc, err
}

type olm struct {
	controller clustercache.SourceWatcher[ctrl.Request]
}

func (r *olm) watchApplied(ctx context.Context, cc clustercache.ClusterCache, extension client.Object,
	applied []client.Object) error {
	err := cc.For(ctx, extension).WatchContent(ctx, clustercache.NewContentWatch(clustercache.ContentWatchOptions{
		Name:         "my-operator",
		Watcher:      r.controller,
		Objects:      applied,
		Dependent:    extension.GetUID(),
		EventHandler: clustercache.EnqueueFor(client.ObjectKeyFromObject(extension)),
		OnError: func(ctx context.Context, problem clustercache.WatchError) {
			log.FromContext(ctx).Info("Watch", "kind", problem.Kind, "state", problem.State, "error", problem.Err)
		},
	}))
	return err
}
