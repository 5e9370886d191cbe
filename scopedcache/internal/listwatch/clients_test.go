package listwatch

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
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
