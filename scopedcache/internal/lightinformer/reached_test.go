package lightinformer

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/internal/versions"
)

// An informer that has reached a list takes no change and no list of before it, until it has
// received something that is later.
func TestThePastOfAListIsLeftOut(t *testing.T) {
	g := NewWithT(t)
	object := func(version string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: version}}
	}
	i := New(nil, object(""), 0, toolscache.Indexers{})
	s := &store{Informer: i}
	list := &versions.Snapshot{Version: "10"}
	g.Expect(i.Reaches(list)).To(BeFalse(), "it has no list yet")
	g.Expect(s.Replace(nil, "5")).To(Succeed())
	g.Expect(i.Reaches(list)).To(BeTrue())
	g.Expect(s.Add(object("9"))).To(Succeed())
	g.Expect(i.Objects()).To(BeZero(), "it was deleted before 10")
	g.Expect(s.Replace([]any{object("9")}, "9")).To(Succeed())
	g.Expect(i.Objects()).To(BeZero(), "a list of an API server that is behind")
	g.Expect(s.Replace([]any{object("9")}, "10")).To(Succeed())
	g.Expect(i.Objects()).To(BeZero())
	g.Expect(s.Add(object("b"))).To(Succeed())
	g.Expect(i.Objects()).To(Equal(1), "a version that cannot be compared is not of before")
	g.Expect(s.Delete(object("10"))).To(Succeed())
	g.Expect(i.Objects()).To(Equal(1))
	g.Expect(s.Bookmark("11")).To(Succeed())
	g.Expect(s.Delete(object("10"))).To(Succeed())
	g.Expect(i.Objects()).To(BeZero(), "what follows something later is not of before")
}
