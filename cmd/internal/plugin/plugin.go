package plugin

import (
	"context"
	"fmt"
	"io"

	"github.com/pkg/errors"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

const usage = `kubectl latchkey reads the connections that "latchkey manager --state-api" serves.

Usage:
  kubectl latchkey why EXTENSION [flags]    why it is not connected, what it may not do, and what to do
  kubectl latchkey role EXTENSION [flags]   the least roles for what it used (--missing: for what it was refused;
                                            --unused: what it may do, and did not)
  kubectl latchkey top [flags]              the caches with the most objects or informers

"kubectl latchkey COMMAND --help" lists the flags.
`

// pageSize is how many objects are read at a time.
const pageSize = 500

// cli is what the commands work with.
type cli struct {
	group     string
	namespace string // of namespaced extensions
	config    *rest.Config
	dynamic   dynamic.Interface
	discovery discovery.CachedDiscoveryInterface
}

// ErrUsage is returned for no command: what is possible has been printed.
var ErrUsage = errors.New("name a command")

// Run runs a command, and prints what it says. An error is for people.
func Run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(out, usage)
		return ErrUsage
	}
	command, args := args[0], args[1:]
	flags := pflag.NewFlagSet("kubectl latchkey "+command, pflag.ContinueOnError)
	rules, overrides := clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}
	flags.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig")
	clientcmd.BindOverrideFlags(overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	group := flags.String("group", v1alpha1.GroupVersion.Group, "group of the state API")
	var do func(c *cli, args []string) error
	switch command {
	case "why":
		do = func(c *cli, args []string) error {
			if len(args) != 1 {
				return errors.New("name one extension: kubectl latchkey why EXTENSION")
			}
			return c.why(ctx, out, args[0])
		}
	case "role":
		var f roleFlags
		f.bind(flags)
		do = func(c *cli, args []string) error {
			if len(args) != 1 {
				return errors.New("name one extension: kubectl latchkey role EXTENSION")
			}
			return c.role(ctx, out, args[0], f)
		}
	case "top":
		by := flags.String("sort-by", "objects", "objects or informers")
		all := flags.BoolP("all-namespaces", "A", false, "the connections of all namespaces, if they have namespaces")
		do = func(c *cli, args []string) error {
			if len(args) != 0 {
				return errors.Errorf("top takes no arguments, but got %q", args)
			}
			return c.top(ctx, out, *by, *all)
		}
	case "help", "-h", "--help":
		fmt.Fprint(out, usage)
		return nil
	default:
		return errors.Errorf("there is no command %q\n\n%s", command, usage)
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	c, err := newCLI(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides), *group)
	if err != nil {
		return err
	}
	return do(c, flags.Args())
}

func newCLI(loaded clientcmd.ClientConfig, group string) (*cli, error) {
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, errors.Wrap(err, "finding a cluster (--kubeconfig, $KUBECONFIG, ~/.kube/config)")
	}
	config.QPS, config.Burst = 50, 100
	c := &cli{group: group, config: config}
	if c.namespace, _, err = loaded.Namespace(); err != nil {
		return nil, errors.Wrap(err, "reading the namespace")
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	c.discovery = memory.NewMemCacheClient(discover)
	return c, nil
}

// resource returns a client for a resource of the state API, of one namespace if it is namespaced.
func (c *cli) resource(name string, allNamespaces bool) (dynamic.ResourceInterface, error) {
	version := schema.GroupVersion{Group: c.group, Version: v1alpha1.GroupVersion.Version}
	served, err := c.discovery.ServerResourcesForGroupVersion(version.String())
	if apierrors.IsNotFound(err) || errors.Is(err, memory.ErrCacheNotFound) {
		return nil, errors.Errorf("the cluster has no API %s: is \"latchkey manager --state-api\" installed "+
			"(docs/stateapi.md), or has it another --group?", version)
	}
	if err != nil {
		return nil, errors.Wrapf(err, "reading the API %s", version)
	}
	resource := c.dynamic.Resource(version.WithResource(name))
	for i := range served.APIResources {
		if r := &served.APIResources[i]; r.Name == name && r.Namespaced && !allNamespaces {
			return resource.Namespace(c.namespace), nil
		}
	}
	return resource, nil
}

// get reads a connection.
func (c *cli) get(ctx context.Context, name string) (*v1alpha1.Connection, error) {
	connections, err := c.resource("connections", false)
	if err != nil {
		return nil, err
	}
	found, err := connections.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errors.Errorf("there is no connection %s: the extension does not exist, or the operator filters it out",
			name)
	}
	if err != nil {
		return nil, errors.Wrap(err, "reading the connection")
	}
	connection := &v1alpha1.Connection{}
	return connection, errors.WithMessage(fromUnstructured(found, connection), "reading the connection")
}

// scopesOf returns the scopes of a connection.
func (c *cli) scopesOf(ctx context.Context, of *v1alpha1.Connection) ([]v1alpha1.Scope, error) {
	scopes, err := c.resource("scopes", true)
	if err != nil {
		return nil, err
	}
	return listAll[v1alpha1.Scope](ctx, in(scopes, of.Namespace), "scopes", "status.extension="+of.Name)
}

// in returns the client for one namespace, if it has a name.
func in(resource dynamic.ResourceInterface, namespace string) dynamic.ResourceInterface {
	if all, ok := resource.(dynamic.NamespaceableResourceInterface); ok && namespace != "" {
		return all.Namespace(namespace)
	}
	return resource
}

// fromUnstructured converts an object that the API server returned.
func fromUnstructured(from *unstructured.Unstructured, to any) error {
	return errors.WithStack(runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, to))
}

// resourceMapper is the part of meta.RESTMapper that finds the resource of a kind.
type resourceMapper interface {
	RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
}

// mapper returns what knows the resources of kinds.
func (c *cli) mapper() resourceMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(c.discovery)
}
