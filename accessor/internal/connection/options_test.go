package connection

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects that are read without copies are shared with no other extension.
func TestSharesIdentities(t *testing.T) {
	g := NewWithT(t)
	byObject := func(of cache.ByObject) CacheOptions {
		return CacheOptions{Informers: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: of}}}
	}
	unsafe := new(true)
	for name, options := range map[string]CacheOptions{
		"turned off":             {DisableIdentitySharing: true},
		"objects are not shared": {DisableObjectSharing: true},
		"no copies":              {Informers: cache.Options{DefaultUnsafeDisableDeepCopy: unsafe}},
		"no copies of a kind":    byObject(cache.ByObject{UnsafeDisableDeepCopy: unsafe}),
		"no copies of a kind, in namespace": byObject(cache.ByObject{Namespaces: map[string]cache.Config{
			"n": {UnsafeDisableDeepCopy: unsafe},
		}}),
	} {
		g.Expect(options.SharesIdentities()).To(BeFalse(), name)
	}
	safe := byObject(cache.ByObject{UnsafeDisableDeepCopy: new(false), Namespaces: map[string]cache.Config{"n": {}}})
	g.Expect(safe.SharesIdentities()).To(BeTrue())
	g.Expect((&CacheOptions{}).SharesIdentities()).To(BeTrue())
}
