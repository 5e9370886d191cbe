package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// parallelGets is how many connections are read at a time, for their numbers of objects.
const parallelGets = 10

// usageOf is what a connection uses.
type usageOf struct {
	name               string
	informers, objects int64
}

// top prints the connections that use most.
func (c *cli) top(ctx context.Context, out io.Writer, by string, allNamespaces bool) error {
	out = untrusted.Terminal(out)
	if by != "objects" && by != "informers" {
		return errors.Errorf("--sort-by %s: use objects or informers", by)
	}
	connections, err := c.resource("connections", allNamespaces)
	if err != nil {
		return err
	}
	var found []v1alpha1.Connection
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := connections.List(ctx, options)
		if err != nil {
			return errors.Wrap(err, "reading the connections")
		}
		for i := range page.Items {
			var connection v1alpha1.Connection
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(page.Items[i].Object, &connection); err != nil {
				return errors.Wrap(err, "reading the connections")
			}
			found = append(found, connection)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			break
		}
	}
	usages := make([]usageOf, len(found))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for i := range found {
		usages[i] = usageOf{
			name:      strings.TrimPrefix(found[i].Namespace+"/"+found[i].Name, "/"),
			informers: int64(found[i].Status.Scopes),
		}
		if usages[i].informers > 0 { // only the answer to a get counts objects
			group.Go(func() (err error) {
				usages[i].objects, err = c.objects(ctx, connections, &found[i])
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

// objects returns how many objects the cache of a connection has.
func (c *cli) objects(ctx context.Context, connections dynamic.ResourceInterface,
	connection *v1alpha1.Connection) (int64, error) {
	if named, ok := connections.(dynamic.NamespaceableResourceInterface); ok && connection.Namespace != "" {
		connections = named.Namespace(connection.Namespace)
	}
	got, err := connections.Get(ctx, connection.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, errors.Wrap(err, "reading a connection")
	}
	var counted v1alpha1.Connection
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, &counted); err != nil {
		return 0, errors.Wrap(err, "reading a connection")
	}
	if counted.Status.Objects == nil {
		return 0, nil
	}
	return *counted.Status.Objects, nil
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
	fmt.Fprintln(table, "NAME\tOBJECTS\tINFORMERS")
	for _, usage := range usages {
		fmt.Fprintf(table, "%s\t%d\t%d\n", usage.name, usage.objects, usage.informers)
	}
	return errors.Wrap(table.Flush(), "printing")
}
