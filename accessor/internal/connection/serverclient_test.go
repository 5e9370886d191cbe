package connection

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// sibling returns the client of another connection to the same server, whose requests go to via.
func sibling(t *testing.T, c client.Client, via http.RoundTripper) *followingClient {
	first := c.(*followingClient)
	other := newTestConnection(t)
	other.options, other.limiter = first.conn.options, first.conn.limiter
	other.target, other.mapper = first.conn.target, first.conn.mapper
	other.httpClient = &http.Client{Transport: via, Timeout: first.conn.httpClient.Timeout}
	following, err := newFollowingClient(other, other.httpClient, nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return following
}

// Connections to a server share a client, and each request goes out as that of the connection whose
// client was called: whatever the context of the caller has, and in whatever order they are called.
func TestServerClientSendsAsTheCaller(t *testing.T) {
	g := NewWithT(t)
	s, c := newShapes(t, nil)
	var sentByOther []string
	var seen context.Context
	other := sibling(t, c, testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		sentByOther, seen = append(sentByOther, req.URL.Path), req.Context()
		return s.RoundTrip(req)
	}))
	g.Expect(other.server).To(BeIdenticalTo(c.(*followingClient).server))
	for range 3 {
		g.Expect(other.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
		g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
	}
	g.Expect(sentByOther).To(HaveLen(3))
	requests, _ := s.take()
	g.Expect(requests).To(HaveLen(6))

	withOther := context.WithoutCancel(seen)
	for _, call := range []func() error{
		func() error {
			return c.Get(withOther, client.ObjectKey{Namespace: "ns", Name: "x"}, shapeNamed("", ""))
		},
		func() error { return c.Create(withOther, shapeNamed("ns", "x")) },
		func() error { return c.Update(withOther, shapeNamed("ns", "x")) },
		func() error { return c.Patch(withOther, shapeNamed("ns", "x"), client.RawPatch("a/b", []byte("{}"))) },
		func() error {
			return c.Apply(withOther, client.ApplyConfigurationFromUnstructured(shapeNamed("ns", "x")))
		},
		func() error { return c.Delete(withOther, shapeNamed("ns", "x")) },
		func() error { return c.DeleteAllOf(withOther, shapeNamed("", ""), client.InNamespace("ns")) },
		func() error { return c.Status().Create(withOther, shapeNamed("ns", "x"), shapeNamed("ns", "x")) },
		func() error { return c.Status().Update(withOther, shapeNamed("ns", "x")) },
		func() error {
			return c.Status().Patch(withOther, shapeNamed("ns", "x"), client.RawPatch("a/b", []byte("{}")))
		},
		func() error {
			return c.Status().Apply(withOther, client.ApplyConfigurationFromUnstructured(shapeNamed("ns", "x")))
		},
		func() error {
			return c.SubResource("scale").Get(withOther, shapeNamed("ns", "x"), shapeNamed("ns", "x"))
		},
	} {
		g.Expect(call()).To(Succeed())
		requests, _ := s.take()
		g.Expect(requests).To(HaveLen(1))
	}
	g.Expect(sentByOther).To(HaveLen(3), "nothing of c went out as the other")
}

// Without a connection that sends it, a request is not sent.
func TestServerClientAloneSendsNothing(t *testing.T) {
	g := NewWithT(t)
	s, c := newShapes(t, nil)
	g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
	s.take()
	shared := c.(*followingClient).server.forms[formUnstructured].current.Load()
	g.Expect(shared.Create(t.Context(), shapeNamed("ns", "x"))).To(MatchError(errNoSender))
	requests, _ := s.take()
	g.Expect(requests).To(BeEmpty())
}

// Each connection has the limit of its own requests.
func TestServerClientLimitsEachSender(t *testing.T) {
	g := NewWithT(t)
	s, c := newShapes(t, nil)
	c.(*followingClient).sender.limiter = flowcontrol.NewTokenBucketRateLimiter(1e-6, 1)
	other := sibling(t, c, s)
	g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	g.Expect(c.Create(ctx, shapeNamed("ns", "x"))).To(MatchError(ContainSubstring("rate")))
	g.Expect(other.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
}

// What one connection calls a kind changes nothing for the others: a list of Shapes as a single
// object is another resource than Shapes. The same object as a configuration to apply has another
// codec.
func TestServerClientKeepsFormsApart(t *testing.T) {
	g := NewWithT(t)
	s, c := newShapes(t, nil)
	other := sibling(t, c, s)
	asSingle := shapeNamed("ns", "x")
	asSingle.SetKind("ShapeList")
	_ = other.Get(t.Context(), client.ObjectKeyFromObject(asSingle), asSingle)
	_ = other.Create(t.Context(), asSingle)
	metadata := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"}}
	metadata.SetGroupVersionKind(shapeKind.GroupVersion().WithKind("ShapeList"))
	_ = other.Delete(t.Context(), metadata)
	requests, _ := s.take()
	g.Expect(requests).To(ContainElement(ContainSubstring("shapelists")), "discovery makes that name up")
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(shapeKind.GroupVersion().WithKind("ShapeList"))
	g.Expect(c.List(t.Context(), list, client.InNamespace("ns"))).To(Succeed())
	requests, _ = s.take()
	g.Expect(requests).To(Equal([]string{"GET namespaces/ns/shapes"}))

	apiVersion, kind := shapeKind.ToAPIVersionAndKind()
	typed := &configuration{
		APIVersion: &apiVersion,
		Kind:       &kind,
		Metadata:   map[string]*string{"name": new("x"), "namespace": new("ns")},
	}
	g.Expect(other.Apply(t.Context(), typed)).To(Succeed())
	scale := &unstructured.Unstructured{}
	g.Expect(c.SubResource("scale").Get(t.Context(), shapeNamed("ns", "x"), scale)).To(Succeed())
	g.Expect(scale.GetKind()).NotTo(BeEmpty(), "the codec of the typed configuration would drop it")
}

// A client that knows too many kinds begins anew: some may be gone.
func TestServerClientForgetsKinds(t *testing.T) {
	g := NewWithT(t)
	s, c := newShapes(t, nil)
	g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
	current := func() *pinnedClient { return c.(*followingClient).server.forms[formUnstructured].current.Load() }
	first, known := current(), current().pins.get(shapeKind)
	first.pins.known.Delete(shapeKind)
	for n := range maxPins - 1 {
		gvk := shapeKind
		gvk.Kind = fmt.Sprint("Gone", n)
		g.Expect(first.pins.take(gvk, known)).To(BeTrue())
	}
	g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
	g.Expect(current()).NotTo(BeIdenticalTo(first))
	g.Expect(current().pins.full()).To(BeFalse())
	requests, _ := s.take()
	g.Expect(requests).To(HaveLen(2))
}

// An identity that may not discover takes no turn of others that find a contradiction.
func TestServerClientDoubtsEachForItself(t *testing.T) {
	g := NewWithT(t)
	s, c := newShapes(t, nil)
	denied := s.client.Transport
	other := sibling(t, c, s)
	other.conn.mapper = other.conn.target.Mapper("", &http.Client{
		Transport: testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			if req.URL.Path == "/api" || strings.HasPrefix(req.URL.Path, "/apis/example.com") {
				return nil, errors.New("this identity may not discover")
			}
			return denied.RoundTrip(req)
		}),
	}, 0)
	g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
	s.set(func(s *shapes) { s.namespaced = false })
	g.Expect(other.Create(t.Context(), shapeNamed("", "x"))).NotTo(Succeed())
	g.Expect(c.Create(t.Context(), shapeNamed("", "x"))).To(Succeed(), "it asks, and finds that there are no namespaces")
}

// A connection whose requests always contradict what is known takes no turn of others either.
func TestServerClientThatIsAlwaysWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, c := newShapes(t, nil)
		wrong := sibling(t, c, s)
		wrong.conn.mapper = wrong.conn.target.Mapper("", s.client, 0)
		g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
		for range 20 {
			time.Sleep(time.Second)
			g.Expect(wrong.Create(t.Context(), shapeNamed("", "x"))).NotTo(Succeed())
		}
		s.set(func(s *shapes) { s.namespaced = false })
		time.Sleep(2 * time.Second) // what was found is shared for a second
		g.Expect(c.Create(t.Context(), shapeNamed("", "x"))).To(Succeed())
	})
}

// The client of a server ends with the last connection to it, and one that came meanwhile stays.
func TestServerClientsAreForgotten(t *testing.T) {
	g := NewWithT(t)
	scheme := apiruntime.NewScheme()
	metav1.AddToGroupVersion(scheme, shapeKind.GroupVersion())
	var servers serverClients
	known := func() int {
		runtime.GC()
		servers.mu.Lock()
		defer servers.mu.Unlock()
		return len(servers.clients)
	}
	kept := servers.of(serverKey{nil, time.Second}, scheme)
	g.Expect(servers.of(serverKey{nil, time.Second}, scheme)).To(BeIdenticalTo(kept))
	g.Expect(servers.of(serverKey{nil, time.Minute}, scheme)).NotTo(BeIdenticalTo(kept))
	g.Eventually(known, time.Minute).Should(Equal(1))
	g.Expect(servers.of(serverKey{nil, time.Second}, scheme)).To(BeIdenticalTo(kept))
	servers.drop(kept.key) // by the cleanup of an earlier one
	g.Expect(known()).To(Equal(1))
	runtime.KeepAlive(kept)
}

// The client of a connection that has ended asks for no kind: its discovery would fail, and use up
// the turn of the target's other members.
func TestServerClientEndedAsksNothing(t *testing.T) {
	g := NewWithT(t)
	s, c := newShapes(t, nil)
	g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
	ended := sibling(t, c, s)
	asked := 0
	ended.conn.mapper = ended.conn.target.Mapper("", &http.Client{
		Transport: testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
			asked++
			return nil, errors.New("the connection has ended")
		}),
	}, 0)
	ended.conn.Close(&connstate.NotConnectedError{Reason: connstate.ReasonUnauthorized})
	for range 3 {
		g.Expect(ended.Create(t.Context(), shapeNamed("", "x"))).To(MatchError(connstate.ErrNotConnected))
	}
	g.Expect(asked).To(BeZero())
}
