package connection

import (
	"errors"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// Requests that are under way when others are refused go on, and the last of them is noticed.
func TestRequests(t *testing.T) {
	g := NewWithT(t)
	r := &Requests{}
	g.Expect(r.begin()).To(Succeed())
	g.Expect(r.begin()).To(Succeed())
	r.end()
	reason := &connstate.NotConnectedError{Reason: connstate.ReasonNotOwned}
	answered := r.Refuse(reason)
	g.Expect(answered).NotTo(BeClosed())
	g.Expect(r.begin()).To(BeIdenticalTo(reason))
	r.end()
	g.Expect(answered).NotTo(BeClosed())
	r.end()
	g.Expect(answered).To(BeClosed())
	g.Expect(r.begin()).To(BeIdenticalTo(reason))
	r.end()

	g.Expect((&Requests{}).Refuse(reason)).To(BeClosed(), "none is under way")

	var none *Requests
	g.Expect(none.begin()).To(Succeed())
	none.end()
	g.Expect(none.Refused()).To(Succeed())
}

// Requests that pass no admittingRoundTripper are counted and refused as well.
func TestRequestsRoundTripper(t *testing.T) {
	g := NewWithT(t)
	r, sent := &Requests{}, 0
	failed := errors.New("no answer")
	transport := requestsRoundTripper{r, testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		sent++
		g.Expect(r.underWay.Load()).To(Equal(int64(1)))
		return nil, failed
	})}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com", http.NoBody)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = transport.RoundTrip(req) //nolint:bodyclose // there is none
	g.Expect(err).To(MatchError(failed))
	reason := &connstate.NotConnectedError{Reason: connstate.ReasonNotOwned}
	g.Expect(r.Refuse(reason)).To(BeClosed())
	_, err = transport.RoundTrip(req) //nolint:bodyclose // there is none
	g.Expect(err).To(MatchError(reason))
	g.Expect(sent).To(Equal(1))
}
