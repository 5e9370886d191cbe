package scopedcache

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// sharing is a mapper that knows a kind, and whose caller may not ask the API server.
type sharing struct {
	meta.RESTMapper
	known *meta.RESTMapping
	anew  error
}

func (s sharing) RESTMappingWithContext(context.Context, schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return s.known, nil
}

func (s sharing) RESTMappingAnew(context.Context, schema.GroupKind, string) (*meta.RESTMapping, error) {
	return nil, s.anew
}

// An identity that may not discover uses what others have found, except where an error is the better answer, or
// where the kind is gone.
func TestDiscoveryThatIsDenied(t *testing.T) {
	g := NewWithT(t)
	errDenied, known := errors.New("denied"), &meta.RESTMapping{}
	ask := func(anew error, e monitor.AskMapping) (*meta.RESTMapping, error) {
		c := &scopedCache{}
		c.mapper = sharing{known: known, anew: anew}
		r := &run{entry: &entry{selection: selection{kind: &kind{}}, cache: c}}
		return r.discover(t.Context(), e)
	}
	for _, e := range []monitor.AskMapping{{}, {Distrust: true}} {
		mapping, err := ask(errDenied, e)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(mapping).To(BeIdenticalTo(known))
	}
	_, err := ask(errDenied, monitor.AskMapping{Distrust: true, Sure: true})
	g.Expect(err).To(MatchError(errDenied))
	_, err = ask(&meta.NoKindMatchError{}, monitor.AskMapping{Distrust: true})
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue())
}
