package accessor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

func TestNotConnectedError(t *testing.T) {
	g := NewWithT(t)
	err := errors.Wrap(&NotConnectedError{Extension: client.ObjectKey{Name: "red"}, Reason: Unreachable, Since: t0, Cause: errDown}, "getting a client")
	g.Expect(err).To(MatchError(ErrNotConnected))
	g.Expect(errors.Is(err, errDown)).To(BeTrue())
	g.Expect(err.Error()).To(Equal("getting a client: extension red: not connected (Unreachable): down"))
	g.Expect((&NotConnectedError{Extension: client.ObjectKey{Namespace: "ns", Name: "red"}, Reason: NotStarted}).Error()).To(Equal("extension ns/red: not connected (NotStarted)"))
}

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
	for verdict, reason := range map[healthprobe.Verdict]Reason{
		healthprobe.Unauthorized: Unauthorized, healthprobe.Silent: Unreachable, healthprobe.Denied: ProbeFailed, healthprobe.Failing: ProbeFailed,
	} {
		NewWithT(t).Expect(reasonOfVerdict(verdict)).To(Equal(reason))
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
