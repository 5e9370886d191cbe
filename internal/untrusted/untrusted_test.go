package untrusted

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// answers returns a server that answers text.
func answers(t *testing.T, status int, mediaType, text string) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	return server
}

// read returns the answer to a request through l.
func read(t *testing.T, l *LimitedRoundTripper, server *httptest.Server) (string, error) {
	t.Helper()
	resp, err := (&http.Client{Transport: l}).Get(server.URL)
	if err != nil {
		return "", err
	}
	content, err := io.ReadAll(resp.Body)
	NewWithT(t).Expect(resp.Body.Close()).To(Succeed())
	return string(content), err
}

func TestLimitAllBytes(t *testing.T) {
	g := NewWithT(t)
	text := `{"a":"` + strings.Repeat("x", 600) + `"}`
	server := answers(t, http.StatusOK, "application/json; charset=utf-8", text)
	limited := LimitAll(server.Client().Transport, Budget{Requests: 100, AtOnce: 1, Bytes: 2000})
	g.Expect(read(t, limited, server)).To(Equal(text))
	g.Expect(limited.Used()).To(BeEquivalentTo(len(text) + 540))
	g.Expect(limited.Exceeded()).NotTo(HaveOccurred())
	_, err := read(t, limited, server)
	g.Expect(err).To(MatchError(ContainSubstring("exceed 2000 bytes of memory")))
	g.Expect(limited.Exceeded()).To(MatchError(ContainSubstring("exceed 2000 bytes of memory")))
}

// What a single Read brings counts before a client decodes it.
func TestLimitAllCountsTheLastRead(t *testing.T) {
	server := answers(t, http.StatusOK, "application/json", `{"items":[null,null]}`)
	_, err := read(t, LimitAll(server.Client().Transport, Budget{Requests: 1, AtOnce: 1, Bytes: 2000}), server)
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("exceed 2000 bytes")))
}

func TestLimitAllByRequestsAndValues(t *testing.T) {
	g := NewWithT(t)
	server := answers(t, http.StatusOK, "application/json", `{"items":[`+strings.Repeat("{},", 100))
	limited := LimitAll(server.Client().Transport, Budget{Requests: 3, AtOnce: 1, Bytes: 100_000})
	_, _ = read(t, limited, server)
	_, _ = read(t, limited, server)
	_, err := read(t, limited, server)
	g.Expect(err).To(MatchError(ContainSubstring("exceed 100000 bytes of memory")))
	_, err = read(t, limited, server)
	g.Expect(err).To(MatchError(ContainSubstring("more than 3 requests")))
}

// A decoder that goes by the first bytes of an answer would take protobuf and YAML, too, in which a
// short text may hold much.
func TestLimitAllTakesJSONOnly(t *testing.T) {
	for _, tc := range []struct {
		status                   int
		mediaType, text, problem string
	}{
		{http.StatusOK, "application/json", "\n\t {}", ""},
		{http.StatusOK, "application/json", "", ""},
		{http.StatusOK, "application/vnd.kubernetes.protobuf", "k8s\x00\x0a", "application/vnd.kubernetes.protobuf"},
		{http.StatusOK, "application/json", "k8s\x00\x0a", "not a JSON object"},
		{http.StatusOK, "application/json", "kind: APIResourceList", "not a JSON object"},
		{http.StatusOK, "application/json", "[{}]", "not a JSON object"},
		{http.StatusOK, "application/yaml", "{}", "application/yaml"},
		{http.StatusOK, "a\u202eb", "{}", `media type is "a\u202eb"`},
		{http.StatusNotFound, "text/plain", "404 page not found", ""},
		{http.StatusInternalServerError, "application/json", `{"kind":"Status"}`, ""},
	} {
		t.Run(tc.mediaType+" "+tc.text, func(t *testing.T) {
			g := NewWithT(t)
			server := answers(t, tc.status, tc.mediaType, tc.text)
			limited := LimitAll(server.Client().Transport, Budget{Requests: 10, AtOnce: 1, Bytes: 10_000})
			for range 2 { // the first has freed its place
				got, err := read(t, limited, server)
				if tc.problem != "" {
					g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
					continue
				}
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(got).To(Equal(tc.text))
			}
			g.Expect(limited.Exceeded()).NotTo(HaveOccurred())
		})
	}
}

// Clients decode the bodies of errors, too, and go by their first bytes.
func TestLimitAllCutsErrors(t *testing.T) {
	for name, text := range map[string]string{
		"protobuf":    "k8s\x00" + strings.Repeat("\x12\x00", 100_000),
		"YAML":        "kind: PodList\nitems:\n" + strings.Repeat("- \n", 100_000),
		"after space": " \n k8s\x00" + strings.Repeat("\x12\x00", 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := answers(t, http.StatusInternalServerError, "text/plain", text)
			limited := LimitAll(server.Client().Transport, Budget{Requests: 10, AtOnce: 1, Bytes: 100_000})
			got, err := read(t, limited, server)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(len(got)).To(BeNumerically("<=", 1024))
			g.Expect(text).To(HavePrefix(got))
		})
	}
	g := NewWithT(t)
	server := answers(t, http.StatusInternalServerError, "application/json",
		`{"kind":"PodList","items":[`+strings.Repeat("null,", 1000))
	limited := LimitAll(server.Client().Transport, Budget{Requests: 10, AtOnce: 1, Bytes: 100_000})
	_, err := read(t, limited, server)
	g.Expect(err).To(MatchError(ContainSubstring("exceed 100000 bytes")))
}

// At most AtOnce requests are under way, until their bodies are closed, or their contexts end.
func TestLimitAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		underWay := 0
		limited := LimitAll(roundTripper(func(*http.Request) (*http.Response, error) {
			underWay++
			return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
		}), Budget{Requests: 100, AtOnce: 2, Bytes: 1000})
		send := func(ctx context.Context) (*http.Response, error) {
			return limited.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		}
		first, err := send(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		second, err := send(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = send(short) //nolint:bodyclose // there is none
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
		g.Expect(underWay).To(Equal(2))
		done := make(chan error)
		go func() {
			third, err := send(t.Context())
			if err == nil {
				err = third.Body.Close()
			}
			done <- err
		}()
		synctest.Wait()
		g.Expect(underWay).To(Equal(2))
		g.Expect(first.Body.Close()).To(Succeed())
		g.Expect(<-done).To(Succeed())
		g.Expect(underWay).To(Equal(3))
		g.Expect(first.Body.Close()).To(Succeed(), "again, which frees nothing")
		g.Expect(second.Body.Close()).To(Succeed())
		g.Expect(limited.underWay).To(BeEmpty())
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestJSONMemory(t *testing.T) {
	for text, want := range map[string]int64{
		``:                               0,
		`{}`:                             500,
		`{"a":1}`:                        540,
		`{"a" : [ ] , "b" : "," }`:       580,
		`{"a":"\\\"[{,","b":null}`:       580,
		`{"items":[{},{}]}`:              4540,
		`{"items":[null,null]}`:          4540,
		`{"items":["",""]}`:              4540,
		`{"items":[0, -1.5e3, true]}`:    6540,
		`{"items":[[],[]]}`:              4540,
		`{"resources":[{"a":{}},null]}`:  2040,
		`{"subresources":[{}]}`:          1040,
		`{"verbs":["get","list"]}`:       620,
		`{"verbs":[{}]}`:                 1040,
		`{"shortNames":["get"]}`:         580,
		`{"subresourcesX":["get"]}`:      2540,
		`{"Verbs":["get"]}`:              2540,
		`{"verbs":{"verbs":[]},"a":[1]}`: 3080,
		`{"verbs":[[1]]}`:                2580,
		`]]]}`:                           0,
	} {
		t.Run(text, func(t *testing.T) {
			g := NewWithT(t)
			var whole, parts jsonMemory
			g.Expect(whole.add([]byte(text))).To(Equal(want))
			var sum int64
			for i := range len(text) {
				sum += parts.add([]byte(text[i : i+1]))
			}
			g.Expect(sum).To(Equal(want), "byte by byte")
		})
	}
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
