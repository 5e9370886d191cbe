package fake

import (
	"sync"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Forbid takes from an extension's identity the permission to list and watch the kind in the
// namespace, or in all namespaces if namespace is empty. Cached and uncached reads of the kind
// there return Forbidden, and so do lists over all namespaces. Watches of the kind end, OnError
// receives StateForbidden, and the sources receive an event. An unknown extension becomes known.
// Writes are not affected.
func (f *Cache) Forbid(key client.ObjectKey, gvk schema.GroupVersionKind, namespace string) {
	f.setAccess(key, place{gvk.GroupKind(), namespace}, true)
}

// Allow gives back what the same call of Forbid took. Watches of the kind begin again, as after a
// reconnect: OnError receives StateSynced, and the sources receive an event.
func (f *Cache) Allow(key client.ObjectKey, gvk schema.GroupVersionKind, namespace string) {
	f.setAccess(key, place{gvk.GroupKind(), namespace}, false)
}

func (f *extensions) setAccess(key client.ObjectKey, where place, forbidden bool) {
	f.mu.Lock()
	e := f.getOrAddLocked(key)
	changed, conn, object := e.access.set(where, forbidden), e.conn, e.object
	f.mu.Unlock()
	if !changed {
		return
	}
	if conn != nil {
		conn.applyAccess()
	}
	f.hub.Changed(object)
	f.states.Changed(key)
}

// place is a kind in a namespace; the empty namespace means all of them.
type place struct {
	kind      schema.GroupKind
	namespace string
}

// access records what Forbid took from an extension's identity. Its methods may be called from any
// goroutine.
type access struct {
	mu        sync.Mutex
	forbidden map[place]bool // guarded by mu
}

// set reports whether anything changed.
func (a *access) set(where place, forbidden bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.forbidden[where] == forbidden {
		return false
	}
	if a.forbidden == nil {
		a.forbidden = map[place]bool{}
	}
	a.forbidden[where] = forbidden
	return true
}

// permits reports whether the identity may read the kind in the namespace. All namespaces need
// each.
func (a *access) permits(kind schema.GroupKind, namespace string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for where, forbidden := range a.forbidden {
		if forbidden && where.kind == kind && (where.namespace == "" || namespace == "" || where.namespace == namespace) {
			return false
		}
	}
	return true
}

// checkAccess returns the error of a read that Forbid forbids, nil for others.
func (c *connection) checkAccess(gvk schema.GroupVersionKind, namespace, name, verb string) error {
	if c.access.permits(gvk.GroupKind(), namespace) {
		return nil
	}
	return c.forbidden(gvk, namespace, name, verb)
}

// forbidden returns the error of a read that Forbid forbids.
func (c *connection) forbidden(gvk schema.GroupVersionKind, namespace, name, verb string) error {
	resource := schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}
	if mapping, err := c.testClient.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); err == nil {
		resource = mapping.Resource.GroupResource()
	}
	where := "at the cluster scope"
	if namespace != "" {
		where = "in the namespace \"" + namespace + "\""
	}
	return apierrors.NewForbidden(resource, name, errors.Errorf("User %q cannot %s resource %q in API group %q %s",
		c.identity.Username, verb, resource.Resource, resource.Group, where))
}
