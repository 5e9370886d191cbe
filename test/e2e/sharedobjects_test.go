package e2e

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// stored returns the ConfigMap of the tenant that the informer of an extension stores, which only a
// raw handler can see. The controller manager keeps a ConfigMap of its own in each namespace.
func stored(t *testing.T, o *operator, extension, namespace, name string) *corev1.ConfigMap {
	t.Helper()
	g := NewWithT(t)
	whole, err := o.GetCluster(t.Context(), key(extension))
	g.Expect(err).NotTo(HaveOccurred())
	handle, err := whole.GetCache().(scopedcache.Cache).Hold(t.Context(), &corev1.ConfigMap{},
		scopedcache.Scope{Namespace: namespace}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	received := make(chan *corev1.ConfigMap, 1)
	_, err = handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if configMap := object.(*corev1.ConfigMap); configMap.Name == name {
				received <- configMap
			}
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	var object *corev1.ConfigMap
	g.Eventually(received).WithTimeout(patience).Should(Receive(&object))
	return object
}

// TestObjectsAreShared checks that the connections of two extensions share an object that both see,
// unless the options say otherwise.
func TestObjectsAreShared(t *testing.T) {
	for name, disabled := range map[string]bool{"shared": false, "not shared": true} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ns := namespace(t)
			tenant(t, ns, "sharing-red")
			tenant(t, ns, "sharing-blue")
			create(t, configMap(ns, "one"))
			o := startOperator(t, clustercache.Options{Cache: clustercache.CacheOptions{DisableObjectSharing: disabled}})
			o.waitConnected(t, "sharing-red")
			o.waitConnected(t, "sharing-blue")
			red, blue := stored(t, o, "sharing-red", ns, "one"), stored(t, o, "sharing-blue", ns, "one")
			g.Expect(red).To(Equal(blue))
			g.Expect(red == blue).To(Equal(!disabled))
		})
	}
}
