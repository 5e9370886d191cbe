// Command kubectl-latchkey is a plugin of kubectl, which runs it as "kubectl latchkey". It reads
// the state API (package stateapi).
//
//	kubectl latchkey why EXTENSION   why it is not connected, or what it may not read, and what to do
//	kubectl latchkey top             caches by objects or informers
//
// Put the binary into a folder of $PATH. It has the usual flags of kubectl.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pkg/errors"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

const usage = `kubectl latchkey reads the connections that "latchkey manager --state-api" serves.

Usage:
  kubectl latchkey why EXTENSION [flags]   why it is not connected, what it may not read, and what to do
  kubectl latchkey top [flags]             the caches with the most objects or informers

"kubectl latchkey COMMAND --help" lists the flags.
`

// pageSize is how many objects are read at a time.
const pageSize = 500

// cli is what the commands work with.
type cli struct {
	group     string
	namespace string // of namespaced extensions
	state     dynamic.Interface
	discovery discovery.CachedDiscoveryInterface
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(untrusted.Terminal(os.Stderr), "kubectl latchkey:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
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
		onlyRole := flags.Bool("role", false, "print only the roles that the identity lacks, as YAML to apply")
		do = func(c *cli, args []string) error {
			if len(args) != 1 {
				return errors.New("name one extension: kubectl latchkey why EXTENSION")
			}
			return c.why(ctx, os.Stdout, args[0], *onlyRole)
		}
	case "top":
		by := flags.String("sort-by", "objects", "objects or informers")
		all := flags.BoolP("all-namespaces", "A", false, "the connections of all namespaces, if they have namespaces")
		do = func(c *cli, args []string) error {
			if len(args) != 0 {
				return errors.Errorf("top takes no arguments, but got %q", args)
			}
			return c.top(ctx, os.Stdout, *by, *all)
		}
	case "help", "-h", "--help":
		fmt.Print(usage)
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
	c := &cli{group: group}
	if c.namespace, _, err = loaded.Namespace(); err != nil {
		return nil, errors.Wrap(err, "reading the namespace")
	}
	if c.state, err = dynamic.NewForConfig(config); err != nil {
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
	resource := c.state.Resource(version.WithResource(name))
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
	return connection, errors.Wrap(runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, connection),
		"reading the connection")
}

// scopesOf returns the scopes of an extension.
func (c *cli) scopesOf(ctx context.Context, name string) ([]v1alpha1.Scope, error) {
	scopes, err := c.resource("scopes", false)
	if err != nil {
		return nil, err
	}
	found, err := scopes.List(ctx, metav1.ListOptions{
		FieldSelector: "status.extension=" + name,
	})
	if err != nil {
		return nil, errors.Wrap(err, "reading the scopes")
	}
	list := make([]v1alpha1.Scope, len(found.Items))
	for i := range found.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Items[i].Object, &list[i]); err != nil {
			return nil, errors.Wrap(err, "reading the scopes")
		}
	}
	return list, nil
}

// mapper returns what knows the resources of kinds.
func (c *cli) mapper() resourceMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(c.discovery)
}
