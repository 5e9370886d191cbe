package e2e

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// setUp returns the error of SetupWithManager for the options.
func setUp(t *testing.T, options clustercache.Options) error {
	t.Helper()
	restConfig, err := cp.UserConfig(operatorUser)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(restConfig, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport)
	_, err = clustercache.SetupWithManager(t.Context(), mgr, quick(options), unnamed())
	return err
}

func objectOf(gvk schema.GroupVersionKind) client.Object {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	return object
}

// TestSetupChecksPaths checks that setup returns an error for an author's mistake in a path. The
// author sees an error at setup. Without the check, every tenant would see it.
func TestSetupChecksPaths(t *testing.T) {
	described := objectOf(defineKind(t, "Described", "Namespaced",
		"serviceAccountName: {type: string}, size: {type: integer}"))
	both := objectOf(defineKind(t, "Both", "Namespaced",
		"serviceAccount: {type: object, properties: {name: {type: string}}}, namespace: {type: string}"))
	lax := objectOf(defineKind(t, "Lax", "Namespaced", "any: {type: object, x-kubernetes-preserve-unknown-fields: true}"))
	global := objectOf(defineKind(t, "Global", "Cluster", "account: {type: string}, namespace: {type: string}"))
	tokens := func(namespacePath, namePath string) credential.Provider {
		return credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			NamespacePath: namespacePath,
			NamePath:      namePath,
		})
	}
	for name, tc := range map[string]struct {
		object      client.Object
		credentials credential.Provider
		problem     string // "" if the paths are valid
	}{
		"a field": {described, tokens("", "spec.serviceAccountName"), ""},
		"braces":  {described, tokens("", "{.spec.serviceAccountName}"), "write it without braces"},
		"a typo": {described, tokens("", "spec.serviceAcountName"),
			"NamePath: Described.example.com has no field spec.serviceAcountName (spec has serviceAccountName, size)"},
		"a number": {described, tokens("", "spec.size"),
			"NamePath: field spec.size of Described.example.com is not a string"},
		"the default of another kind": {described, nil, "has no field spec.serviceAccount.name"},
		"no namespace at the given path": {described, tokens("spec.namespace", "spec.serviceAccountName"),
			"NamespacePath: Described.example.com has no field spec.namespace"},
		"two namespaces": {both, tokens("", ""),
			"set NamespacePath to the field with the ServiceAccount's namespace: metadata.namespace or spec.namespace"},
		"two namespaces, metadata.namespace chosen":         {both, tokens("metadata.namespace", ""), ""},
		"two namespaces, spec.namespace chosen":             {both, tokens("spec.namespace", ""), ""},
		"a field of a schema that preserves unknown fields": {lax, tokens("", "spec.any.thing"), ""},
		"a cluster-scoped kind":                             {global, tokens("", "spec.account"), ""},
		"impersonation, with a typo": {global,
			credential.Impersonation(credential.ImpersonationOptions{
				NamePath: "spec.acount",
			}), "NamePath: Global.example.com has no field spec.acount"},
		"Secrets without a namespace": {global, credential.KubeconfigSecrets(credential.KubeconfigOptions{}),
			"Global.example.com is cluster-scoped: set Namespace to the namespace of its Secrets"},
		"Secrets, with a typo": {described,
			credential.KubeconfigSecrets(credential.KubeconfigOptions{NamePath: "spec.secret"}), "has no field spec.secret"},
		"a Go type": {&corev1.ConfigMap{}, tokens("", "data.sa"), ""},
		"a typo in a Go type": {&corev1.Pod{}, tokens("", "spec.serviceAccount.name"),
			"Pod has no field spec.serviceAccount.name (spec.serviceAccount has no fields)"},
		"a built-in kind, unstructured": {objectOf(corev1.SchemeGroupVersion.WithKind("Pod")),
			tokens("", "spec.serviceAccountName"), ""},
		"a typo in a built-in kind, unstructured": {objectOf(corev1.SchemeGroupVersion.WithKind("Pod")),
			tokens("", "spec.serviceAccountname"), "Pod has no field spec.serviceAccountname"},
		"a field of spec, with metadata only": {&metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		}, tokens("", "spec.serviceAccountName"), "Pod has no field spec.serviceAccountName"},
		"a kind without a definition": {objectOf(schema.GroupVersionKind{
			Group:   "example.com",
			Version: "v1",
			Kind:    "Gadget",
		}), nil, "the API server does not serve example.com/v1, Kind=Gadget"},
	} {
		for guard, allow := range map[string]func(*clustercache.Options){"guarded": func(o *clustercache.Options) {
			o.AllowIdentity = clustercache.GuardedByAdmission
		}, "in its own namespace": func(*clustercache.Options) {}} {
			options := clustercache.Options{Object: tc.object, Credentials: tc.credentials}
			allow(&options)
			t.Run(name+" "+guard, func(t *testing.T) {
				g := NewWithT(t)
				err := setUp(t, options)
				if err != nil {
					g.Expect(err.Error()).NotTo(ContainSubstring("unstructured.Unstructured"))
				}
				if tc.problem != "" {
					g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
				} else if err != nil { // the guard may refuse the options for its own reason
					g.Expect(err).To(MatchError(ContainSubstring("Options.AllowIdentity")))
				}
			})
		}
	}
}
