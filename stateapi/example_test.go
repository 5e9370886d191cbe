package stateapi_test

import (
	"context"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/stateapi/extension"
)

func ExampleNew() {
	serve := func(_ context.Context, mgr ctrl.Manager, connections clustercache.ClusterCache) error {
		clients, err := kubernetes.NewForConfig(mgr.GetConfig())
		if err != nil {
			return err
		}
		certificate, err := dynamiccertificates.NewDynamicServingContentFromFiles("state-api",
			"/certificate/tls.crt", "/certificate/tls.key")
		if err != nil {
			return err
		}
		api, err := stateapi.New(connections, stateapi.Options{Server: extension.ExtensionAPIServerOptions{
			Client: clients, Certificate: certificate, BindAddress: ":6443",
		}})
		if err != nil {
			return err
		}
		return mgr.Add(api)
	}
	_ = serve
}
