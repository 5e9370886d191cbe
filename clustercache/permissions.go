package clustercache

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/objectlist"
	"github.com/latchkey-dev/latchkey/ownership"
)

// permissionInterval is how often the reconciler checks for a permission that the host operator
// lacks. The check reads the manager's cache and sends no request to the API server.
const permissionInterval = time.Second

// watchPermissions checks regularly what the host operator itself may read, until ctx is done.
func (r *reconciler) watchPermissions(ctx context.Context) {
	tick := time.NewTicker(permissionInterval)
	defer tick.Stop()
	lacking, begun := false, false
	for {
		switch err := r.readExtensions(ctx); {
		case apierrors.IsForbidden(err):
			err = errors.WithMessagef(err, "the host operator needs list and watch on %s, by a rule %s", r.resource,
				identity.Rule(r.resource, nil, "list", "watch"))
			r.set.MayNotRead(err)
			if !lacking {
				ctrl.LoggerFrom(ctx).Info("Extensions cannot be read", "error", err.Error())
			}
			lacking = true
		case err == nil:
			r.set.MayNotRead(nil)
			if lacking {
				ctrl.LoggerFrom(ctx).Info("Extensions can be read")
			}
			lacking = false
			begun = begun || r.beginInitialPass(ctx)
		}
		if waiting, ok := r.forbidden.any(); ok {
			r.wake(waiting)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// beginInitialPass begins the first pass with all extensions that the cache has. It returns false
// if they cannot be read.
func (r *reconciler) beginInitialPass(ctx context.Context) bool {
	all, err := r.listExtensions(ctx, nil)
	if err == nil {
		r.initialPass.begins(all...)
	}
	return err == nil
}

// listExtensions returns the keys of the extensions in share that the cache has, and that the label
// selects; a nil share has all.
func (r *reconciler) listExtensions(ctx context.Context, share ownership.Share) (all []client.ObjectKey, err error) {
	list, err := objectlist.New(r.object, r.scheme)
	if err != nil {
		return nil, err
	}
	if err := r.objects.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		if object := item.(client.Object); r.hasLabel(object) && (share == nil || share(object)) {
			all = append(all, client.ObjectKeyFromObject(object))
		}
		return nil
	})
	return all, err
}

// readExtensions reads an extension from the cache. The read takes permissionInterval at most.
func (r *reconciler) readExtensions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, permissionInterval)
	defer cancel()
	if readable, err := r.objects.Readable(ctx, r.object); err != nil || readable {
		return err
	}
	list, err := objectlist.New(r.object, r.scheme)
	if err != nil {
		return err
	}
	return r.objects.List(ctx, list, client.Limit(1), client.UnsafeDisableDeepCopy)
}

// forbidden are the extensions that are not connected because the host operator lacks a permission.
// The zero value is empty.
type forbidden struct {
	mu         sync.Mutex
	extensions map[client.ObjectKey]struct{} // guarded by mu
}

// note records whether the extension waits for a permission. If the extension no longer waits, note
// returns and forgets the extensions that still do.
func (f *forbidden) note(extension client.ObjectKey, waits bool) (wake []client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, waited := f.extensions[extension]
	switch {
	case waits && f.extensions == nil:
		f.extensions = map[client.ObjectKey]struct{}{extension: {}}
	case waits:
		f.extensions[extension] = struct{}{}
	case waited:
		delete(f.extensions, extension)
		for other := range f.extensions {
			wake = append(wake, other)
		}
		clear(f.extensions) // an extension that waits for another permission is noted again
	}
	return wake
}

// forget forgets an extension.
func (f *forbidden) forget(extension client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.extensions, extension)
}

// any returns a randomly chosen extension that waits. One extension is tried on behalf of all.
func (f *forbidden) any() (client.ObjectKey, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.extensions) == 0 {
		return client.ObjectKey{}, false
	}
	skip := rand.IntN(len(f.extensions))
	for extension := range f.extensions {
		if skip == 0 {
			return extension, true
		}
		skip--
	}
	return client.ObjectKey{}, false
}
