package accessor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/accessor/credential"
)

func TestReasonOf(t *testing.T) {
	for reason, err := range map[Reason]error{
		NotAllowed:             errors.WithMessage(MarkNotAllowed(errDown), "x"),
		InvalidReference:       errors.Wrap(credential.ErrInvalidReference, "x"),
		ServiceAccountNotFound: errors.Wrap(credential.ErrServiceAccountNotFound, "x"),
		TokenRequestFailed:     errors.Wrap(credential.ErrTokenRequestFailed, "x"),
		InvalidCredential:      errors.Wrap(credential.ErrInvalidCredential, "x"),
		Unreachable:            errDown,
	} {
		NewWithT(t).Expect(reasonOf(err)).To(Equal(reason))
	}
}

func TestGoroutinesWait(t *testing.T) {
	g := NewWithT(t)
	var owned goroutines
	started, release := make(chan struct{}), make(chan struct{})
	owned.start(func() { close(started); <-release })
	<-started
	done := make(chan struct{})
	go func() { g.Expect(owned.wait(time.Hour)).To(BeTrue()); close(done) }()
	g.Consistently(done, 50*time.Millisecond).ShouldNot(BeClosed())
	close(release)
	g.Eventually(done).Should(BeClosed())
	owned.start(func() { t.Error("nothing starts after wait") })
	g.Expect(owned.wait(time.Hour)).To(BeTrue())
}
