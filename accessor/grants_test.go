package accessor

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// permissionServer is an API server that states one user, denies all writes, and answers access
// reviews.
type permissionServer struct {
	allows, hangs atomic.Bool
	reviews       atomic.Int64
}

func (s *permissionServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	body, _ := io.ReadAll(req.Body)
	switch {
	case strings.HasSuffix(req.URL.Path, "/selfsubjectreviews"):
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1",`+
			`"status":{"userInfo":{"username":"u","uid":"1"}}}`)
	case strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews"):
		s.reviews.Add(1)
		if s.hangs.Load() {
			<-req.Context().Done()
			return
		}
		if !strings.Contains(string(body), "create") || !strings.Contains(string(body), "configmaps") {
			w.WriteHeader(http.StatusInternalServerError) // that was not refused
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1",`+
			`"status":{"allowed":%t}}`, s.allows.Load())
	default:
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"message":`+
			`"configmaps is forbidden: User \"u\" cannot create resource \"configmaps\" in API group \"\""}`)
	}
}

// What was refused is asked again until it is granted, which the sources hear of once, or until the
// connection ends, however long the API server takes to answer. Nothing is asked before.
func TestGrants(t *testing.T) {
	g := NewWithT(t)
	s := &permissionServer{}
	r := newReviewer(t)
	r.rest.Store(new(http.HandlerFunc(s.ServeHTTP)))
	d := drive(t, r.URL, rareProbes, noRetry, func(options *Options) {
		options.Record = true
		options.Cache.Scopes.AccessReviewInterval = 50 * time.Millisecond
	})
	d.extension("red", "token")
	d.eventually("red", connectedAs("u"))
	write := func() {
		config, err := d.At(client.ObjectKey{Name: "red"}).GetRESTConfig(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		clients, err := rest.HTTPClientFor(config)
		g.Expect(err).NotTo(HaveOccurred())
		resp, err := clients.Post(r.URL+"/api/v1/namespaces/n/configmaps", "application/json", strings.NewReader("{}"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
		g.Expect(resp.StatusCode).To(Equal(http.StatusForbidden))
	}
	waiting := func() int {
		d.grants.mu.Lock()
		defer d.grants.mu.Unlock()
		return len(d.grants.waiting)
	}
	g.Expect(waiting()).To(BeZero())
	write()
	g.Expect(waiting()).To(Equal(1))
	g.Eventually(s.reviews.Load).WithTimeout(patience).Should(BeNumerically(">=", 3), "again and again")
	g.Expect(d.changed()).To(Equal([]string{"red"}), "connected")
	s.allows.Store(true)
	g.Eventually(d.changed).WithTimeout(patience).Should(Equal([]string{"red", "red"}), "and granted")
	g.Eventually(waiting).WithTimeout(patience).Should(BeZero())
	asked := s.reviews.Load()

	s.allows.Store(false)
	s.hangs.Store(true)
	write()
	g.Eventually(s.reviews.Load).WithTimeout(patience).Should(BeNumerically(">", asked))
	d.deleteExtension("red")
	g.Eventually(waiting).WithTimeout(patience).Should(BeZero())
	g.Eventually(d.changed).WithTimeout(patience).Should(Equal([]string{"red", "red", "red"}), "and deleted")
}
