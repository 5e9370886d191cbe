package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// parallelGets is how many objects are read at a time, for their numbers of objects.
const parallelGets = 10

// usageOf is what a cache has. extensions of one identity may share it.
type usageOf struct {
	name                           string // of the extension, or of the first one
	extensions, informers, objects int64
}

// sharing is the connections that use one cache, sorted by name.
type sharing []*v1alpha1.Connection

// top prints the caches that have most.
func (c *cli) top(ctx context.Context, out io.Writer, by string, allNamespaces bool) error {
	out = untrusted.Terminal(out)
	if by != "objects" && by != "informers" {
		return errors.Errorf("--sort-by %s: use objects or informers", by)
	}
	connections, err := c.resource("connections", allNamespaces)
	if err != nil {
		return err
	}
	found, err := listAll[v1alpha1.Connection](ctx, connections, "connections", "")
	if err != nil {
		return err
	}
	caches := cachesOf(found)
	scopes, err := c.resource("scopes", allNamespaces)
	if err != nil {
		return err
	}
	var sharedScopes map[string][]sharedScope
	if slices.ContainsFunc(caches, func(users sharing) bool { return len(users) > 1 }) {
		all, err := listAll[v1alpha1.Scope](ctx, scopes, "scopes", "")
		if err != nil {
			return err
		}
		sharedScopes = scopesByCache(found, all)
	}
	usages := make([]usageOf, len(caches))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for i, users := range caches {
		usages[i] = usageOf{name: namesOf(users), extensions: int64(len(users)), informers: int64(users[0].Status.Scopes)}
		var scopesOfAll []sharedScope
		if len(users) > 1 {
			scopesOfAll = sharedScopes[users[0].Status.SharedCache]
			usages[i].informers = int64(len(scopesOfAll))
		}
		if usages[i].informers == 0 {
			continue
		}
		if one := usesAll(users, usages[i].informers); one != nil { // only the answer to a get counts objects
			group.Go(func() (err error) {
				usages[i].objects, err = objectsOf(ctx, connections, one)
				return err
			})
			continue
		}
		for _, scope := range scopesOfAll {
			group.Go(func() error {
				objects, err := objectsOf(ctx, scopes, scope...)
				atomic.AddInt64(&usages[i].objects, objects)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	sortUsages(usages, by)
	return printUsages(out, usages)
}

// listAll reads all pages of what a field selector selects.
func listAll[T any](ctx context.Context, from dynamic.ResourceInterface, what, selector string) (all []T, err error) {
	for options := (metav1.ListOptions{Limit: pageSize, FieldSelector: selector}); ; {
		page, err := from.List(ctx, options)
		if err != nil {
			return nil, errors.Wrapf(err, "reading the %s", what)
		}
		for i := range page.Items {
			var item T
			if err := fromUnstructured(&page.Items[i], &item); err != nil {
				return nil, errors.WithMessagef(err, "reading the %s", what)
			}
			all = append(all, item)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// cachesOf returns the connections by the cache that they use.
func cachesOf(connections []v1alpha1.Connection) (caches []sharing) {
	place := map[string]int{}
	for i := range connections {
		shared := connections[i].Status.SharedCache
		if at, known := place[shared]; known && shared != "" {
			caches[at] = append(caches[at], &connections[i])
			continue
		}
		place[shared] = len(caches)
		caches = append(caches, sharing{&connections[i]})
	}
	for _, users := range caches {
		slices.SortFunc(users, func(x, y *v1alpha1.Connection) int { return strings.Compare(keyOf(x), keyOf(y)) })
	}
	return caches
}

// keyOf returns namespace/name, or the name of a cluster-scoped extension.
func keyOf(connection *v1alpha1.Connection) string {
	return keyString(connection.Namespace, connection.Name)
}

func keyString(namespace, name string) string { return strings.TrimPrefix(namespace+"/"+name, "/") }

// namesOf returns the names of a cache's users in short.
func namesOf(users sharing) string {
	if len(users) == 1 {
		return keyOf(users[0])
	}
	return fmt.Sprintf("%s and %d more", keyOf(users[0]), len(users)-1)
}

// usesAll returns a connection that uses all of the cache's informers, nil if there is none.
func usesAll(users sharing, informers int64) metav1.Object {
	for _, user := range users {
		if int64(user.Status.Scopes) == informers {
			return user
		}
	}
	return nil
}

// sharedScope is one scope of a cache, as each of its users has it.
type sharedScope []metav1.Object

// scopesByCache returns the scopes of each cache.
func scopesByCache(connections []v1alpha1.Connection, scopes []v1alpha1.Scope) map[string][]sharedScope {
	cacheOf := map[string]string{}
	for i := range connections {
		cacheOf[keyOf(&connections[i])] = connections[i].Status.SharedCache
	}
	type scopeOf struct {
		cache, representation string
		v1alpha1.Selection
	}
	byCache, place := map[string][]sharedScope{}, map[scopeOf]int{}
	for i := range scopes {
		status := &scopes[i].Status
		cache := cacheOf[keyString(scopes[i].Namespace, status.Extension)]
		if cache == "" {
			continue
		}
		key := scopeOf{cache, status.Representation, status.Selection}
		at, known := place[key]
		if !known {
			at = len(byCache[cache])
			place[key], byCache[cache] = at, append(byCache[cache], nil)
		}
		byCache[cache][at] = append(byCache[cache][at], &scopes[i])
	}
	return byCache
}

// objectsOf returns how many objects the first of some connections or scopes has that is not gone.
func objectsOf(ctx context.Context, from dynamic.ResourceInterface, of ...metav1.Object) (int64, error) {
	for _, one := range of {
		got, err := in(from, one.GetNamespace()).Get(ctx, one.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return 0, errors.Wrapf(err, "reading %s", one.GetName())
		}
		objects, _, err := unstructured.NestedInt64(got.Object, "status", "objects")
		return objects, errors.Wrapf(err, "reading %s", one.GetName())
	}
	return 0, nil
}

// sortUsages sorts by a column, the most first.
func sortUsages(usages []usageOf, by string) {
	slices.SortStableFunc(usages, func(x, y usageOf) int {
		objects, informers := cmp.Compare(y.objects, x.objects), cmp.Compare(y.informers, x.informers)
		if by == "informers" {
			objects, informers = informers, objects
		}
		return cmp.Or(objects, informers, cmp.Compare(x.name, y.name))
	})
}

func printUsages(out io.Writer, usages []usageOf) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAME\tEXTENSIONS\tOBJECTS\tINFORMERS")
	for _, usage := range usages {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\n", usage.name, usage.extensions, usage.objects, usage.informers)
	}
	return errors.Wrap(table.Flush(), "printing")
}
