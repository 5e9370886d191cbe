package scopedcache

import (
	"reflect"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An object whose Go type has several kinds says which one it is, each time.
func TestTypeWithSeveralKinds(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	other := schema.GroupVersion{Group: "example.com", Version: "v1"}
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.ConfigMap{}, &corev1.Secret{})
	scheme.AddKnownTypes(other, &corev1.ConfigMap{})
	known := &kinds{scheme: scheme}
	known.types.Store(&map[reflect.Type]*kind{})
	for range 2 {
		for _, version := range []schema.GroupVersion{corev1.SchemeGroupVersion, other} {
			k, err := known.kindOf(&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: version.String(), Kind: "ConfigMap"}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(k.gvk).To(Equal(version.WithKind("ConfigMap")))
		}
	}
	_, err := known.kindOf(&corev1.ConfigMap{})
	g.Expect(err).To(MatchError(ContainSubstring("multiple GroupVersionKinds")))
	_, err = known.kindOf(&corev1.Secret{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(*known.types.Load()).To(HaveLen(1), "types with one kind are found in one step")
}
