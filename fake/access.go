package fake

import (
	"slices"
	"sync"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Forbid takes from an extension's identity the permission to get, list and watch the kind in the
// namespace, or in all namespaces if namespace is empty. Cached and uncached reads of the kind
// there return Forbidden, and so do lists over all namespaces. Watches of the kind end, OnError
// receives StateForbidden, and the sources receive an event. An unknown extension becomes known.
// Writes are not affected: see ForbidWrites.
func (f *Cache) Forbid(key client.ObjectKey, gvk schema.GroupVersionKind, namespace string) {
	f.setAccess(key, place{gvk.GroupKind(), namespace}, &restriction{})
}

// ForbidExcept is Forbid, but the identity may still get, list and watch objects of these names, as
// with a Role that has resourceNames. Get of such an object, List with the field metadata.name and
// watches with that field selector work.
func (f *Cache) ForbidExcept(key client.ObjectKey, gvk schema.GroupVersionKind, namespace string, names ...string) {
	f.setAccess(key, place{gvk.GroupKind(), namespace}, &restriction{names: slices.Sorted(slices.Values(names))})
}

// ForbidListAndWatch is Forbid, but the identity may still get objects. Cached Gets then work as
// with Options.Client.Cache.LiveGet. Without that option, a real ClusterCache forbids them: use
// Forbid.
func (f *Cache) ForbidListAndWatch(key client.ObjectKey, gvk schema.GroupVersionKind, namespace string) {
	f.setAccess(key, place{gvk.GroupKind(), namespace}, &restriction{get: true})
}

// Allow gives back what Forbid, ForbidExcept or ForbidListAndWatch took of the kind in the
// namespace. Watches of the kind begin again, as after a reconnect: OnError receives StateSynced,
// and the sources receive an event.
func (f *Cache) Allow(key client.ObjectKey, gvk schema.GroupVersionKind, namespace string) {
	f.setAccess(key, place{gvk.GroupKind(), namespace}, nil)
}

// ForbidWrites takes from an extension's identity the permission to use these verbs, such as create
// and patch, on the kind in the namespace, or in all namespaces if namespace is empty; without
// verbs create, update, patch, delete and deletecollection. Such writes of its clients return
// Forbidden, and CheckPermissions says so. An apply needs patch, and create if there is no such
// object. An unknown extension becomes known.
func (f *Cache) ForbidWrites(key client.ObjectKey, gvk schema.GroupVersionKind, namespace string, verbs ...string) {
	if len(verbs) == 0 {
		verbs = []string{"create", "update", "patch", "delete", "deletecollection"}
	}
	f.setWrites(key, place{gvk.GroupKind(), namespace}, slices.Clone(verbs))
}

// AllowWrites gives back what ForbidWrites took of the kind in the namespace. The sources receive
// an event.
func (f *Cache) AllowWrites(key client.ObjectKey, gvk schema.GroupVersionKind, namespace string) {
	f.hub.Changed(f.setWrites(key, place{gvk.GroupKind(), namespace}, nil))
}

// setWrites sets which verbs of writes are forbidden in a place, and returns the extension.
func (f *extensions) setWrites(key client.ObjectKey, where place, verbs []string) client.Object {
	f.mu.Lock()
	e := f.getOrAddLocked(key)
	access, object := e.access, e.object
	f.mu.Unlock()
	access.mu.Lock()
	defer access.mu.Unlock()
	if access.writes == nil {
		access.writes = map[place][]string{}
	}
	access.writes[where] = verbs
	return object
}

func (f *extensions) setAccess(key client.ObjectKey, where place, forbidden *restriction) {
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

// restriction is what Forbid leaves in a place.
type restriction struct {
	names []string // of the objects that may be read
	get   bool     // get, of all objects
}

// access records what Forbid took from an extension's identity. Its methods may be called from any
// goroutine.
type access struct {
	mu        sync.Mutex
	forbidden map[place]restriction // guarded by mu
	writes    map[place][]string    // guarded by mu; verbs that ForbidWrites took
}

// set records what is forbidden in a place, nil for nothing. set reports whether anything changed.
func (a *access) set(where place, forbidden *restriction) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, known := a.forbidden[where]
	if forbidden == nil {
		delete(a.forbidden, where)
		return known
	}
	if known && before.get == forbidden.get && slices.Equal(before.names, forbidden.names) {
		return false
	}
	if a.forbidden == nil {
		a.forbidden = map[place]restriction{}
	}
	a.forbidden[where] = *forbidden
	return true
}

// permits reports whether the identity may use a verb on the kind in the namespace. name is that of
// the only object, empty for all objects. All namespaces need each.
func (a *access) permits(kind schema.GroupKind, namespace, name, verb string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for where, verbs := range a.writes {
		if where.has(kind, namespace) && slices.Contains(verbs, verb) {
			return false
		}
	}
	if !slices.Contains([]string{"get", "list", "watch"}, verb) {
		return true
	}
	for where, left := range a.forbidden {
		mayGet := left.get && verb == "get"
		if where.has(kind, namespace) && !mayGet && !slices.Contains(left.names, name) {
			return false
		}
	}
	return true
}

// has reports whether a request about a kind in a namespace, or in all, is about the place.
func (p place) has(kind schema.GroupKind, namespace string) bool {
	return p.kind == kind && (p.namespace == "" || namespace == "" || p.namespace == namespace)
}

// checkAccess returns the error of a read that Forbid forbids, nil for others.
func (c *connection) checkAccess(gvk schema.GroupVersionKind, namespace, name, verb string) error {
	if c.access.permits(gvk.GroupKind(), namespace, name, verb) {
		return nil
	}
	return c.forbidden(gvk, namespace, name, verb)
}

// nameIn returns the name that a selector requires, empty if there is none.
func nameIn(selector fields.Selector) string {
	if selector == nil {
		return ""
	}
	name, _ := selector.RequiresExactMatch(metav1.ObjectNameField)
	return name
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
