package workpool

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestTaskGroupWait(t *testing.T) {
	g := NewWithT(t)
	var owned TaskGroup
	started, release := make(chan struct{}), make(chan struct{})
	owned.Start(func() { close(started); <-release })
	<-started
	done := make(chan struct{})
	go func() { g.Expect(owned.Wait(time.Hour)).To(BeTrue()); close(done) }()
	g.Consistently(done, 50*time.Millisecond).ShouldNot(BeClosed())
	close(release)
	g.Eventually(done).Should(BeClosed())
	owned.Start(func() { t.Error("nothing starts after wait") })
	g.Expect(owned.Wait(time.Hour)).To(BeTrue())
}
