package listwatch

import (
	"net/http"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Caches of one scheme share codecs, and caches of different schemes do not.
func TestCodecsAreShared(t *testing.T) {
	g := NewWithT(t)
	one, other := runtime.NewScheme(), runtime.NewScheme()
	first := NewClients(nil, nil, one).codecs()
	g.Expect(NewClients(nil, nil, one).codecs()).To(BeIdenticalTo(first))
	g.Expect(NewClients(nil, nil, other).codecs()).NotTo(BeIdenticalTo(first))
	g.Expect(NewClients(nil, nil, other).codecs().scheme).To(BeIdenticalTo(other))
	again := NewClients(nil, nil, one)
	g.Expect(again.codecs().scheme).To(BeIdenticalTo(one))
}

// Informers of one kind share a rate limiter: the config's, or else one of the kind.
func TestLimiterIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes
		g := NewWithT(t)
		configMap, secret := corev1.SchemeGroupVersion.WithKind("ConfigMap"), corev1.SchemeGroupVersion.WithKind("Secret")
		own := NewClients(&rest.Config{QPS: 7, Burst: 9}, nil, runtime.NewScheme())
		limiter := own.configOf(configMap).RateLimiter
		g.Expect(limiter.QPS()).To(BeEquivalentTo(7))
		g.Expect(own.configOf(configMap).RateLimiter).To(BeIdenticalTo(limiter))
		g.Expect(own.configOf(secret).RateLimiter).NotTo(BeIdenticalTo(limiter))
		g.Expect(burstOf(limiter)).To(Equal(9))
		objects := typedCollection{kind{
			clients: own,
			config:  own.configOf(configMap),
			mapping: &meta.RESTMapping{GroupVersionKind: configMap},
		}}
		client, err := objects.client(nil)
		g.Expect(err).To(MatchError(ContainSubstring("httpClient must not be nil")))
		g.Expect(client).To(BeNil())
		client, err = objects.client(http.DefaultClient)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(client.GetRateLimiter()).To(BeIdenticalTo(limiter), "requests use it")

		defaults := NewClients(&rest.Config{}, nil, runtime.NewScheme()).configOf(configMap).RateLimiter
		g.Expect(defaults.QPS()).To(BeEquivalentTo(rest.DefaultQPS))
		g.Expect(burstOf(defaults)).To(Equal(rest.DefaultBurst))

		given := &rest.Config{RateLimiter: flowcontrol.NewFakeAlwaysRateLimiter()}
		g.Expect(NewClients(given, nil, runtime.NewScheme()).configOf(configMap)).To(BeIdenticalTo(given))
		unlimited := &rest.Config{QPS: -1}
		g.Expect(NewClients(unlimited, nil, runtime.NewScheme()).configOf(configMap)).To(BeIdenticalTo(unlimited))
	})
}

// burstOf returns how many requests a limiter accepts at once.
func burstOf(limiter flowcontrol.RateLimiter) (n int) {
	for limiter.TryAccept() {
		n++
	}
	return n
}
