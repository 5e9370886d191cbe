package clustercache

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// elected is a manager of which only the channel is known.
type elected struct {
	manager.Manager
	channel chan struct{}
}

func (e elected) Elected() <-chan struct{} { return e.channel }

// The ClusterCaches of a manager share, also through a type that wraps the manager, and a name is
// free again when its cache has ended.
func TestManagerSet(t *testing.T) {
	g := NewWithT(t)
	set := managerSet{byElected: map[<-chan struct{}]*managed{}}
	one, other := elected{channel: make(chan struct{})}, elected{channel: make(chan struct{})}
	first, leaveFirst, err := set.join(one, "first")
	g.Expect(err).NotTo(HaveOccurred())
	second, leaveSecond, err := set.join(struct{ manager.Manager }{one}, "second")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second).To(BeIdenticalTo(first))
	_, _, err = set.join(one, "second")
	g.Expect(err).To(MatchError(And(ContainSubstring(`"second"`), ContainSubstring("Options.Name"))))
	elsewhere, leaveElsewhere, err := set.join(other, "first")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(elsewhere).NotTo(BeIdenticalTo(first))
	unknown, _, err := set.join(elected{}, "first")
	g.Expect(err).NotTo(HaveOccurred())
	another, _, err := set.join(elected{}, "first")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(another).NotTo(BeIdenticalTo(unknown))
	leaveSecond()
	again, leaveAgain, err := set.join(one, "second")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(BeIdenticalTo(first))
	leaveFirst()
	leaveAgain()
	leaveElsewhere()
	g.Expect(set.byElected).To(BeEmpty())
}
