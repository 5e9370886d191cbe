package scopedcache

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// withContext is a mapper as client-go has them.
type withContext struct {
	meta.RESTMapper
	contextMapper
}

func (s sharing) RESTMappingAnew(context.Context, schema.GroupKind, string) (*meta.RESTMapping, error) {
	return nil, s.anew
}

// An identity that may not discover uses what others have found, except where an error is the
// better answer. A discovery that fails is an error.
func TestDiscoveryThatIsDenied(t *testing.T) {
	g := NewWithT(t)
	known := &meta.RESTMapping{}
	errDenied, errDown := apierrors.NewForbidden(schema.GroupResource{}, "", nil), apierrors.NewServiceUnavailable("down")
	ask := func(anew error, e monitor.AskMapping) (*meta.RESTMapping, error) {
		env := &environment{discovery: &discovery{mapper: sharing{known: known, anew: anew}}}
		r := &run{entry: &entry{selection: selection{kind: &kind{}}, env: env}}
		return r.discover(t.Context(), e)
	}
	for _, e := range []monitor.AskMapping{{}, {Distrust: true}} {
		mapping, err := ask(errDenied, e)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(mapping).To(BeIdenticalTo(known))
	}
	_, err := ask(errDenied, monitor.AskMapping{Distrust: true, Sure: true})
	g.Expect(err).To(MatchError(errDenied))
	mapping, err := ask(apierrors.NewUnauthorized("denied"), monitor.AskMapping{Distrust: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mapping).To(BeIdenticalTo(known))
	for _, failure := range []error{errDown, context.DeadlineExceeded, &meta.NoKindMatchError{}} {
		_, err = ask(failure, monitor.AskMapping{Distrust: true})
		g.Expect(err).To(MatchError(failure))
	}
	g.Expect((&discovery{mapper: sharing{}}).mapperForgets()).To(BeTrue())
	g.Expect((&discovery{mapper: withContext{}}).mapperForgets()).To(BeFalse(), "client-go's keep what they found")
}
