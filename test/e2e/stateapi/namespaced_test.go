package stateapi

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// Connections of namespaced extensions are namespaced: two of one name are two.
func TestNamespaced(t *testing.T) {
	g := NewWithT(t)
	plugin := buildPlugin(t)
	startOperator(t, func(o *clustercache.Options) {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		o.Object = object
		o.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			NamespacePath: "metadata.namespace", NamePath: "data.account"})
	})
	for _, namespace := range []string{"one", "two"} {
		create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"},
			Data: map[string]string{"account": "deployer"}})
	}
	deployer(t, "one")
	get := func(args ...string) func() string {
		return func() string {
			return tryKubectl(t, append([]string{"get", "connections", "--no-headers"}, args...)...)
		}
	}
	eventually(t, get("tenant", "-n", "one")).Should(MatchRegexp(`^tenant +system:serviceaccount:one:deployer +Connected `))
	eventually(t, get("tenant", "-n", "two")).
		Should(MatchRegexp(`^tenant +system:serviceaccount:two:deployer +Disconnected +ServiceAccountNotFound `))
	g.Expect(get("-A", "--field-selector=metadata.name=tenant", "-o", "name")()).
		To(Equal("connection.state.latchkey.dev/tenant\nconnection.state.latchkey.dev/tenant\n"))
	g.Expect(get("-n", "one", "--field-selector=metadata.name=tenant", "-o", "name")()).
		To(Equal("connection.state.latchkey.dev/tenant\n"))
	g.Expect(plugin("why", "tenant", "-n", "two")).To(And(MatchRegexp(`^Connection: +two/tenant\n`),
		MatchRegexp(`Reason: +ServiceAccountNotFound\n`)))
	g.Expect(plugin("top", "-n", "one")).To(And(MatchRegexp(`\none/tenant +0 +0\n`), Not(ContainSubstring("two/tenant"))))
	g.Expect(plugin("top", "-A")).To(And(ContainSubstring("\none/tenant "), ContainSubstring("\ntwo/tenant ")))
}
