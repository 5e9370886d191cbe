package connection

import (
	"encoding/pem"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// token is a credential of which nothing is sent.
type token struct{ identity.Credential }

func (token) TransportRequirement() identity.TransportRequirement {
	return identity.TransportRequirement{}
}

// BenchmarkConnection has what a connection allocates before its first request: while it is idle,
// when a controller has its clients, and when one of these is about to write.
func BenchmarkConnection(b *testing.B) {
	g := NewWithT(b)
	options := &Options{Scheme: runtime.NewScheme()}
	metav1.AddToGroupVersion(options.Scheme, shapeKind.GroupVersion())
	options.Client.UserAgent = "benchmark"
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	var set targets.Set
	target, err := set.Join(&rest.Config{
		Host:            server.URL,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
	}, nil, &targets.Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	b.Cleanup(target.Leave)
	bound := Bind(token{}, identity.Resolution{}, target.Target)
	observers := Observers{Unauthorized: func() {}, AccessChanged: func() {}, ScopesChanged: func() {}}
	newConnection := func() *Connection {
		return New(b.Context(), nil, options, Extension{Key: client.ObjectKey{Namespace: "ns", Name: "name"}}, 1,
			target.Target, bound, observers)
	}
	kept := newConnection() // others share what it has of the server
	defer kept.Close(errGone)
	if _, err := kept.Clients(); err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name string
		use  func(*Connection) error
	}{
		{"idle", func(*Connection) error { return nil }},
		{"clients", func(c *Connection) error {
			_, err := c.Clients()
			return err
		}},
		{"writes", func(c *Connection) error {
			clients, err := c.Clients()
			if err != nil {
				return err
			}
			_, err = clients.Cached.(*followingClient).server.latest(formUnstructured)
			return err
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := newConnection()
				if err := bench.use(c); err != nil {
					b.Fatal(err)
				}
				c.Close(errGone)
			}
		})
	}
}
