package credential

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// A token is used only if the API server that issued it certainly refuses it.
func TestHostReview(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) string { return strconv.FormatInt(now.Add(d).Unix(), 10) }
	id := tokenID{
		serviceAccount: types.NamespacedName{Namespace: "team", Name: "red"},
		target:         "t",
		audience:       "a",
	}
	valid := `{"aud":["a"],"nbf":` + at(0) + `,"exp":` + at(10*time.Minute) + `}`
	for name, tc := range map[string]struct {
		payload string
		status  int
		date    time.Duration // by which the server's clock is ahead
		problem string
	}{
		"refused":             {valid, http.StatusUnauthorized, 0, ""},
		"accepted":            {valid, http.StatusCreated, 0, "does not refuse it (HTTP status 201)"},
		"known and forbidden": {valid, http.StatusForbidden, 0, "does not refuse it (HTTP status 403)"},
		"elsewhere":           {valid, http.StatusTemporaryRedirect, 0, "does not refuse it (HTTP status 307)"},
		"an error":            {valid, http.StatusInternalServerError, 0, "is unknown (HTTP status 500)"},
		"overloaded":          {valid, http.StatusTooManyRequests, 0, "is unknown (HTTP status 429)"},
		"another audience":    {`{"aud":["b"],"exp":` + at(10*time.Minute) + `}`, 401, 0, "for another audience"},
		"one more audience":   {`{"aud":["a","b"],"exp":` + at(10*time.Minute) + `}`, 401, 0, "has 2 audiences"},
		"a bit early":         {valid, 401, -30 * time.Second, ""},
		"early":               {valid, 401, -90 * time.Second, "it is valid only in 1m"},
		"late":                {valid, 401, 5 * time.Minute, ""},
		"expired":             {valid, 401, 20 * time.Minute, "it has expired by the clock"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			token := jwt(tc.payload)
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked++
				g.Expect(r.Header.Get("Authorization")).To(Equal("Bearer " + token))
				g.Expect(r.URL.Path).To(Equal(reviewPath))
				w.Header().Set("Date", now.Add(tc.date).UTC().Format(http.TimeFormat))
				w.Header().Set("Location", "/")
				w.WriteHeader(tc.status)
			}))
			defer server.Close()
			review, err := newHostReview(&rest.Config{Host: server.URL})
			g.Expect(err).NotTo(HaveOccurred())
			defer review.close()
			expires, err := review.check(t.Context(), token, id)
			if tc.problem == "" {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(expires).To(BeTemporally("~", now.Add(10*time.Minute), time.Second))
				g.Expect(asked).To(Equal(1))
				return
			}
			g.Expect(err).To(MatchError(identity.ErrTokenRequestFailed))
			g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
			g.Expect(err.Error()).NotTo(ContainSubstring(token))
			g.Expect(asked).To(BeNumerically("<=", 1))
		})
	}
	g := NewWithT(t)
	review, err := newHostReview(&rest.Config{Host: "http://127.0.0.1:1"})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = review.check(t.Context(), jwt(valid), id)
	g.Expect(err).To(MatchError(ContainSubstring("asking the host operator's API server")))
	g.Expect(err).NotTo(MatchError(identity.ErrTokenRequestFailed), "no answer, so the reason is Unreachable")
}
