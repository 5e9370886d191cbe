package untrusted

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestQuote(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Quote("a\nb")).To(Equal(`"a\nb"`))
	g.Expect(Quote(strings.Repeat("x", 1<<20))).To(Equal(`"` + strings.Repeat("x", 64) + `…" (1048576 bytes)`))
	g.Expect(Quote(strings.Repeat("x", 63) + strings.Repeat("é", 9))).
		To(Equal(`"` + strings.Repeat("x", 63) + `…" (81 bytes)`))
}

func TestLimitAll(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 600))
	}))
	defer server.Close()
	limited := &http.Client{
		Transport: LimitAll(server.Client().Transport, Budget{Requests: 100, Bytes: 1000}),
	}
	read := func() (int, error) {
		resp, err := limited.Get(server.URL)
		g.Expect(err).NotTo(HaveOccurred())
		defer resp.Body.Close()
		content, err := io.ReadAll(resp.Body)
		return len(content), err
	}
	g.Expect(read()).To(Equal(600))
	n, err := read()
	g.Expect(n).To(BeNumerically("<=", 600))
	if err == nil { // the second answer ended within a single Read; for the third no bytes are left
		_, err = read()
	}
	g.Expect(err).To(MatchError(ContainSubstring("exceed 1000 bytes of memory")))
}

func TestLimitAllByRequestsAndValues(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.Repeat("{},", 100)))
	}))
	defer server.Close()
	limited := &http.Client{
		Transport: LimitAll(server.Client().Transport, Budget{Requests: 3, Bytes: 100_000}),
	}
	read := func() error {
		resp, err := limited.Get(server.URL)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
		return err
	}
	_, _ = read(), read()
	g.Expect(read()).To(MatchError(ContainSubstring("exceed 100000 bytes of memory")))
	g.Expect(read()).To(MatchError(ContainSubstring("more than 3 requests")))
}

func TestShow(t *testing.T) {
	g := NewWithT(t)
	cause := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", nil)
	err := Show(strings.Repeat("x", 2<<10), cause)
	g.Expect(len(err.Error())).To(BeNumerically("<", 1100), "cut after 1 KiB")
	g.Expect(err.Error()).NotTo(ContainSubstring("pods"))
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "the cause is in the chain")
}

func TestStatusText(t *testing.T) {
	g := NewWithT(t)
	text, ok := StatusText(errors.WithMessage(apierrors.NewForbidden(schema.GroupResource{}, "secret-name", nil), "get"))
	g.Expect(ok).To(BeTrue())
	g.Expect(text).To(Equal("Forbidden"), "not the server's own text")
	_, ok = StatusText(errors.New("connection refused"))
	g.Expect(ok).To(BeFalse())
}

func TestIsPresentable(t *testing.T) {
	g := NewWithT(t)
	g.Expect(IsPresentable("system:serviceaccount:ns:name")).To(BeTrue())
	for _, name := range []string{"a\x1b[31m", "a\u202eb", "a\u2066b", "a\u200bb", "a\nb", "a\xffb"} {
		g.Expect(IsPresentable(name)).To(BeFalse(), "%q", name)
	}
	g.Expect(IsPresentable("jörg 漢")).To(BeTrue())
	g.Expect(IsPresentable(strings.Repeat("x", 1024))).To(BeTrue())
	g.Expect(IsPresentable(strings.Repeat("x", 1025))).To(BeFalse())
}
