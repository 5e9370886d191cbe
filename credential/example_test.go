package credential_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// A namespaced kind whose objects name a ServiceAccount of their own namespace.
func ExampleServiceAccountTokens() {
	_ = clustercache.Options{
		Credentials: credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			NamespacePath: "metadata.namespace",
			NamePath:      "spec.serviceAccountName",
		}),
	}
}

// Objects of a namespaced kind need not name a ServiceAccount: "tenant" of their namespace is the
// default.
func ExampleServiceAccountTokens_default() {
	account := func(object client.Object) (types.NamespacedName, error) {
		name := object.GetAnnotations()["example.com/service-account"]
		if name == "" {
			name = "tenant"
		}
		return types.NamespacedName{Namespace: object.GetNamespace(), Name: name}, nil
	}
	_ = clustercache.Options{
		Object:      &corev1.ConfigMap{}, // or any namespaced kind
		Credentials: credential.ServiceAccountTokens(credential.ServiceAccountOptions{Reference: account}),
	}
}

// Objects of a namespaced kind with a kubeconfig act at the API server that it names, all others in
// their own cluster.
func ExampleChoose() {
	kubeconfig := func(object client.Object) string { return object.GetAnnotations()["example.com/kubeconfig"] }
	_ = clustercache.Options{
		Object: &corev1.ConfigMap{}, // or any namespaced kind
		Credentials: credential.Choose(
			func(object client.Object) (string, error) {
				if kubeconfig(object) != "" {
					return "kubeconfig", nil
				}
				return "serviceaccount", nil
			},
			map[string]credential.Provider{
				"serviceaccount": credential.ServiceAccountTokens(credential.ServiceAccountOptions{}),
				"kubeconfig": credential.KubeconfigSecrets(credential.KubeconfigOptions{
					Reference: func(object client.Object) (credential.SecretReference, error) {
						return credential.SecretReference{
							Namespace: object.GetNamespace(),
							Name:      kubeconfig(object),
							Key:       "value",
						}, nil
					},
				}),
			}),
	}
}

// spokes is the operator's own table of API servers, by name.
func ExampleServiceAccountTokens_target() {
	spokes := map[string]credential.Target{ /* from a file, or a ConfigMap that only you may write */ }
	_ = credential.ServiceAccountOptions{
		Target: func(object client.Object) (credential.Target, error) {
			spoke, ok := spokes[object.GetAnnotations()["example.com/spoke"]]
			if !ok {
				return spoke, fmt.Errorf("%w: the annotation names no spoke", credential.ErrInvalidReference)
			}
			return spoke, nil
		},
		AllowTarget: func(_ context.Context, object client.Object, account types.NamespacedName,
			spoke credential.Target) error {
			return nil // each extension may act at each spoke of the table, as a ServiceAccount that AllowIdentity allows
		},
	}
}

// spoke is an API server that calls this cluster's ServiceAccounts by the prefix hub.
func spoke(server string, authority []byte) credential.Target {
	return credential.Target{
		Server: server,
		CAData: authority,
		Username: func(account types.NamespacedName) string {
			return "hub:system:serviceaccount:" + account.Namespace + ":" + account.Name
		},
		StatesUID: true,
	}
}

// The audience that a spoke must list for tokens.
func ExampleTargetAudience() {
	audience, err := credential.TargetAudience(spoke("https://spoke.example.com:6443", nil))
	fmt.Println(audience, err)
	// Output: the certificate authority: holds no certificate
}
