package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A flood of invalid tokens causes few reviews, and does not lock out a token that was accepted.
func TestFloodOfTokens(t *testing.T) {
	g := NewWithT(t)
	var reviews atomic.Int32
	var revoked atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		reviews.Add(1)
		review := &authenticationv1.TokenReview{}
		_ = json.NewDecoder(req.Body).Decode(review)
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User.Username = "alice"
		if revoked.Load() {
			review.Status = authenticationv1.TokenReviewStatus{Error: "the token has expired"}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer front.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host:          front.URL,
		QPS:           -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	g.Expect(err).NotTo(HaveOccurred())
	nobody := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, nil
	})
	all, err := withTokens(nobody, client.AuthenticationV1())
	g.Expect(err).NotTo(HaveOccurred())
	req := httptest.NewRequest(http.MethodGet, "/apis", http.NoBody)
	req.Header.Set("Authorization", "Bearer good")
	response, accepted, err := all.AuthenticateRequest(req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(accepted).To(BeTrue())
	g.Expect(response.User.GetName()).To(Equal("alice"))
	g.Expect(response.User.GetGroups()).To(ContainElement("system:authenticated"))

	gated, err := gate(client.AuthenticationV1()) // without the memory of answers
	g.Expect(err).NotTo(HaveOccurred())
	ask := func(token string) (accepted bool, err error) {
		_, accepted, err = gated.AuthenticateToken(t.Context(), token)
		return accepted, err
	}
	g.Expect(ask("good")).To(BeTrue())
	revoked.Store(true) // the API server says so by an error in the status
	_, err = ask("good")
	g.Expect(err).To(MatchError(ContainSubstring("expired")))
	known, _ := gated.(gatedTokens).gate.Allow("good", "")
	g.Expect(known).To(BeFalse(), "a token that is refused is a stranger's again")
	revoked.Store(false)
	g.Expect(ask("good")).To(BeTrue())
	before, refused := reviews.Load(), 0
	for n := range 1000 {
		accepted, err := ask(fmt.Sprint("bad-", n))
		g.Expect(accepted).To(BeFalse())
		if err != nil {
			g.Expect(err).To(MatchError(errTooManyTokens))
			refused++
		}
	}
	g.Expect(refused).To(BeNumerically(">", 500))
	g.Expect(reviews.Load() - before).To(BeEquivalentTo(1000 - refused))
	g.Expect(ask("good")).To(BeTrue(), "although strangers have used up their share")
}
