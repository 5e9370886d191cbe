package scopedcache

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// foreignContext is a context of another type than those of package context. Contexts that are
// derived from it end some time after it.
type foreignContext struct {
	context.Context
	done chan struct{}
}

func (c foreignContext) Done() <-chan struct{} { return c.done }

func (c foreignContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// A cache ends with the context of Start, although the contexts of its scopes may end a moment
// later.
func TestEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(configMaps, meta.RESTScopeNamespace)
		transport := &http.Transport{DialContext: a.network.DialContext}
		defer transport.CloseIdleConnections()
		for range 200 {
			c, err := New(&rest.Config{Host: a.URL}, cache.Options{
				HTTPClient: &http.Client{Transport: transport},
				Mapper:     mapper,
				Scheme:     runtime.NewScheme(),
			})
			g.Expect(err).NotTo(HaveOccurred())
			ctx := foreignContext{context.Background(), make(chan struct{})}
			ended := make(chan error, 1)
			go func() { ended <- c.Start(ctx) }()
			_, err = c.GetInformer(context.Background(), configMap())
			g.Expect(err).NotTo(HaveOccurred())
			close(ctx.done)
			g.Eventually(ended).WithTimeout(time.Minute).Should(Receive(BeNil()))
		}
	})
}
