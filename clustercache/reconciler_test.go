package clustercache

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// host is a cluster that has only a config.
type host struct{ cluster.Cluster }

func (host) GetConfig() *rest.Config { return &rest.Config{Host: "https://host"} }

// A RESTConfigMapper that panics provides no config.
func TestPanickingMapper(t *testing.T) {
	g := NewWithT(t)
	resolver, err := credential.FromRESTConfigMapper(func(context.Context, client.Object, *rest.Config) (*rest.Config,
		error) {
		panic("no")
	}).Bind(host{}, identity.Kind{})
	g.Expect(err).NotTo(HaveOccurred())
	r := &reconciler{resolver: resolver}
	_, err = r.resolve(t.Context(), &corev1.ConfigMap{})
	g.Expect(err).To(MatchError(credential.ErrInvalidCredential))
	g.Expect(err).To(MatchError(ContainSubstring("Options.Credentials panicked: see the host operator's log")))
}
