package stateapi

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
)

// A tenant says that nothing happens. For each cause, the first command of the runbook says how it
// is and the reason, and the second one names the cause, and says what to do.
func TestRunbook(t *testing.T) {
	g := NewWithT(t)
	plugin := buildPlugin(t)
	const ns = "runbook"
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	o := startOperator(t, func(options *clustercache.Options) {
		options.Permissions.Record = true
		options.AllowIdentity = func(_ context.Context, extension client.Object, _ types.NamespacedName) error {
			if strings.HasPrefix(extension.GetName(), "not-allowed") {
				return apierrors.NewBadRequest("team-x may not use it")
			}
			return nil
		}
	})
	deployer(t, ns)
	of := func(name, account string) {
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"namespace": ns,
			"serviceAccount": map[string]any{"name": account}}}}
		object.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
		object.SetName(name)
		create(t, object)
	}
	watch := func(name string, kind client.Object) {
		key := client.ObjectKey{Name: name}
		eventually(t, func() error {
			return o.connections.Watch(t.Context(), key, clustercache.NewWatcher(clustercache.WatcherOptions{
				Name:         "w",
				Watcher:      fake.NewController(t),
				Kind:         kind,
				EventHandler: &handler.EnqueueRequestForObject{},
				Scope:        clustercache.Scope{Namespace: ns},
			}))
		}).Should(Succeed())
	}
	thing := &unstructured.Unstructured{}
	thing.SetGroupVersionKind(schema.GroupVersionKind{Group: "none.example.com", Version: "v1", Kind: "Thing"})
	for _, test := range []struct {
		name, state, reason, cause, advice string
		prepare                            func(name string)
	}{
		{"missing-account", "Disconnected", "ServiceAccountNotFound", "serviceaccount runbook/none", "Create it",
			func(name string) { of(name, "none") }},
		{"not-allowed", "Disconnected", "NotAllowed", "team-x may not use it", "otherwise name another",
			func(name string) { of(name, "deployer") }},
		{"may-not-watch", "Degraded", "ScopesForbidden", "Secret in namespace runbook: ", "role EXTENSION --missing",
			func(name string) { of(name, "deployer"); watch(name, &corev1.Secret{}) }},
		{"may-not-write", "Degraded", "RequestsRefused", "may not create configmaps in namespace runbook",
			"Grant the ServiceAccount what the message names", func(name string) {
				of(name, "deployer")
				eventually(t, func() error {
					c, err := o.connections.GetClient(t.Context(), client.ObjectKey{Name: name})
					if err != nil {
						return err
					}
					return c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
				}).Should(Satisfy(apierrors.IsForbidden))
			}},
		{"no-such-kind", "Degraded", "KindsNotServed", "Thing.none.example.com in namespace runbook: ",
			"Install the CustomResourceDefinition", func(name string) { of(name, "deployer"); watch(name, thing) }},
		{"fine", "Connected", "", "It is connected, and may read all that is asked for.", "",
			func(name string) { of(name, "deployer") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.prepare(test.name)
			eventually(t, func() []string {
				return strings.Fields(tryKubectl(t, "get", fullName, test.name, "--no-headers"))
			}).Should(ContainElements(strings.Fields(test.state + " " + test.reason)))
			text, err := plugin("why", test.name)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(text).To(And(ContainSubstring(test.state), ContainSubstring(test.cause),
				ContainSubstring(test.advice)))
			if test.reason != "" {
				NewWithT(t).Expect(text).To(MatchRegexp("Reason: +" + test.reason + "\n"))
			}
		})
	}
	// The third command: the role that is missing, for a refused write, too.
	text, err := plugin("role", "may-not-write", "--missing")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(And(ContainSubstring("kind: Role"), ContainSubstring("- configmaps"), ContainSubstring("- create")))
	g.Expect(tryKubectl(t, "get", fullName, "unknown")).To(ContainSubstring("not found"))
}
