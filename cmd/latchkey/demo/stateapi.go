package demo

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

const (
	stateNamespace = "latchkey-system"
	stateService   = "latchkey-state"
)

// addStateAPI makes the manager serve its connections, on a port of this machine.
func addStateAPI(mgr manager.Manager, connections clustercache.ClusterCache, listener net.Listener) error {
	api, err := stateapi.New(connections, stateapi.Options{
		Config:  mgr.GetConfig(),
		Service: stateapi.ServiceOptions{Namespace: stateNamespace, Name: stateService},
		Server:  apiserver.ExtensionAPIServerOptions{Listener: listener},
	})
	if err != nil {
		return err
	}
	return mgr.Add(api)
}

// installStateAPI applies what the API server needs to reach the state API, and binds the roles. It
// is what "latchkey state-api manifests" prints, but for the Service: in a cluster the Service
// leads to the leader's Pod, and here to a port of this machine.
func installStateAPI(ctx context.Context, cp *controlplane.ControlPlane, address net.Addr) error {
	_, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return errors.WithStack(err)
	}
	_, withoutService, _ := strings.Cut(config.Manifests(config.StateAPI), "\n---\n")
	manifests := fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec: {type: ExternalName, externalName: localhost, ports: [{name: https, port: %[3]s}]}
---
`, stateNamespace, stateService, port) + strings.ReplaceAll(withoutService, "port: 443", "port: "+port)
	if _, err := cp.KubectlInput(ctx, manifests, "apply", "-f", "-"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"clusterrolebinding", "demo-state-delegator", "--clusterrole=system:auth-delegator"},
		{"clusterrolebinding", "demo-state-apiservice", "--clusterrole=" + stateService + "-apiservice"},
		{"rolebinding", "demo-state-authentication", "--role=extension-apiserver-authentication-reader", "-n", "kube-system"},
	} {
		if _, err := cp.Kubectl(ctx, append([]string{"create", "--user=" + operatorUser}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// seeConnections waits until kubectl shows that all extensions are connected, and prints what it
// shows.
func (t *tour) seeConnections(ctx context.Context) error {
	table := ""
	if err := t.until(ctx, "kubectl get connections.state.latchkey.dev to show five connections", func() (bool, string) {
		var err error
		if table, err = t.cp.Kubectl(ctx, "get", "connections.state.latchkey.dev"); err != nil {
			return false, err.Error()
		}
		// An extension that lacks a permission is Degraded, and connected.
		return strings.Count(table, " Connected ")+strings.Count(table, " Degraded ") == len(tenants), table
	}); err != nil {
		return err
	}
	t.did("kubectl get connections.state.latchkey.dev")
	for line := range strings.Lines(table) {
		t.saw("%s", strings.TrimRight(line, "\n "))
	}
	return nil
}
