package workpool

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestTaskGroupWait(t *testing.T) {
	g := NewWithT(t)
	var group TaskGroup
	started, release := make(chan struct{}), make(chan struct{})
	group.Start(func() { close(started); <-release })
	<-started
	done := make(chan struct{})
	go func() { g.Expect(group.Wait(time.Hour)).To(BeTrue()); close(done) }()
	g.Consistently(done, 50*time.Millisecond).ShouldNot(BeClosed())
	close(release)
	g.Eventually(done).Should(BeClosed())
	group.Start(func() { t.Error("a goroutine started after Wait") })
	g.Expect(group.Wait(time.Hour)).To(BeTrue())
}
