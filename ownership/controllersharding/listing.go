package controllersharding

import (
	"context"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listing is what the API server said the shard's extensions are, after the shard got its Lease. A
// cache may be late by then: a process that was suspended or cut off has in its cache what the
// sharder has given to others since.
type listing struct {
	version  string               // resourceVersion of the list
	versions map[types.UID]string // resourceVersions of the extensions
}

// confirms reports whether a version of an extension that has the shard's label is as new as the
// list.
func (l *listing) confirms(extension client.Object) bool {
	version, isListed := l.versions[extension.GetUID()]
	order, err := 0, error(nil)
	if isListed {
		order, err = resourceversion.CompareResourceVersion(extension.GetResourceVersion(), version)
		return err != nil || order >= 0 // an API server whose versions have no order cannot be asked for more
	}
	order, err = resourceversion.CompareResourceVersion(extension.GetResourceVersion(), l.version)
	return err != nil || order > 0
}

// list asks the API server for the shard's extensions until it answers, or ctx is done.
func (e *Engine) list(ctx context.Context) bool {
	for {
		listed, err := e.listOnce(ctx)
		if err == nil {
			e.listed.Store(listed)
			return true
		}
		ctrl.LoggerFrom(ctx).Info("Cannot list the shard's extensions yet", "error", err.Error())
		select {
		case <-ctx.Done():
			return false
		case <-time.After(e.options.RetryPeriod):
		}
	}
}

func (e *Engine) listOnce(ctx context.Context) (*listing, error) {
	mapping, err := e.api.RESTMapper().RESTMapping(e.kind)
	if err != nil {
		return nil, errors.Wrap(err, "discovering the kind of the extensions")
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(mapping.GroupVersionKind.GroupVersion().WithKind(mapping.GroupVersionKind.Kind + "List"))
	if err := e.api.List(ctx, list, client.MatchingLabelsSelector{Selector: e.Selector()}); err != nil {
		return nil, err
	}
	listed := &listing{version: list.ResourceVersion, versions: map[types.UID]string{}}
	for i := range list.Items {
		listed.versions[list.Items[i].UID] = list.Items[i].ResourceVersion
	}
	return listed, nil
}
