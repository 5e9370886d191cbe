package e2e

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// elsewhere returns a Provider that maps extensions to other API servers by name. Extensions that
// hosts does not name use the real API server. All extensions use one token.
func elsewhere(token string, hosts map[string]string) credential.Provider {
	return credential.FromRESTConfigMapper(func(_ context.Context, object client.Object,
		base *rest.Config) (*rest.Config, error) {
		if host, ok := hosts[object.GetName()]; ok {
			base.Host = host
		}
		base.BearerToken = token
		return base, nil
	})
}

// nobodyListens returns an address that refuses connections.
func nobodyListens(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(listener.Close()).To(Succeed())
	return "https://" + listener.Addr().String()
}

// neverAnswers returns an address that accepts connections and then sends nothing.
func neverAnswers(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		var conns []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-accepted
	})
	return "https://" + listener.Addr().String()
}

// expectUnaffected checks that extensions at the real API server connect and stay connected,
// despite failures of other API servers.
func expectUnaffected(t *testing.T, o *operator, names ...string) {
	t.Helper()
	for _, name := range names {
		state := o.waitConnected(t, name)
		NewWithT(t).Expect(state.Epoch).To(BeEquivalentTo(1), name)
		NewWithT(t).Expect(state.Health.ConsecutiveFailures).To(BeZero(), name)
		c, err := o.GetClient(t.Context(), key(name))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Eventually(func() error {
			return c.List(t.Context(), &corev1.SecretList{},
				client.InNamespace(state.Identity.Groups[1][len("system:serviceaccounts:"):]))
		}).
			WithTimeout(patience).Should(Succeed(), name)
	}
}

func TestUnreachableAPIServer(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "fine")
	create(t, extension(ns, "nowhere"))
	o := startOperator(t,
		clustercache.Options{Credentials: elsewhere(token(t, ns, "fine"), map[string]string{"nowhere": nobodyListens(t)})})

	state := o.waitReason(t, "nowhere", clustercache.ReasonUnreachable)
	g.Expect(state.Message).To(ContainSubstring("connection refused"))
	g.Expect(state.Target).NotTo(Equal(cp.Config().Host))
	expectNotConnected(t, o, "nowhere", clustercache.ReasonUnreachable)
	var opError *net.OpError
	_, err := o.GetClient(t.Context(), key("nowhere"))
	g.Expect(errors.As(err, &opError)).To(BeTrue(), "the error chain contains the cause: %v", err)
	expectUnaffected(t, o, "fine")
}

func TestHangingAPIServer(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "fine")
	create(t, extension(ns, "also-fine"))
	hosts := map[string]string{}
	hanging := neverAnswers(t)
	for _, name := range []string{"hang-1", "hang-2", "hang-3", "hang-4", "hang-5", "hang-6", "hang-7", "hang-8",
		"hang-9", "hang-10", "hang-11", "hang-12"} {
		create(t, extension(ns, name))
		hosts[name] = hanging
	}
	o := startOperator(t, clustercache.Options{Credentials: elsewhere(token(t, ns, "fine"), hosts)})

	expectUnaffected(t, o, "fine", "also-fine")
	for name := range hosts {
		state := o.waitReason(t, name, clustercache.ReasonUnreachable)
		g.Expect(state.Health.ConsecutiveFailures).To(BeNumerically(">", 0))
		expectNotConnected(t, o, name, clustercache.ReasonUnreachable)
	}
	expectUnaffected(t, o, "fine", "also-fine")
}

func TestRejectedCredential(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "fine")
	create(t, extension(ns, "rejected"))
	create(t, extension(ns, "broken"))
	good := token(t, ns, "fine")
	o := startOperator(t,
		clustercache.Options{Credentials: credential.FromRESTConfigMapper(func(_ context.Context, object client.Object,
			base *rest.Config) (*rest.Config, error) {
			switch object.GetName() {
			case "rejected":
				base.BearerToken = "not-a-token"
			case "broken":
				base.BearerTokenFile = "/etc/passwd"
			default:
				base.BearerToken = good
			}
			return base, nil
		})})
	state := o.waitReason(t, "rejected", clustercache.ReasonUnauthorized)
	g.Expect(state.Message).NotTo(ContainSubstring("not-a-token"))
	state = o.waitReason(t, "broken", clustercache.ReasonInvalidCredential)
	g.Expect(state.Message).To(ContainSubstring("BearerTokenFile"))
	expectUnaffected(t, o, "fine")
}

// TestAPIServerRestart kills and restarts the API server. Every extension becomes Unreachable and
// then recovers, and valid tokens stay in use.
func TestAPIServerRestart(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "one")
	tenant(t, ns, "two")
	o := startOperator(t, clustercache.Options{})
	before := map[string]clustercache.ConnectionState{"one": o.waitConnected(t, "one"), "two": o.waitConnected(t, "two")}
	c := newFakeController(t)
	watch := clustercache.NewWatcher(c.watch("content", metadataOf("ConfigMap"), ns))
	g.Expect(o.Watch(t.Context(), key("one"), watch)).To(Succeed())
	create(t, configMap(ns, "before"))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create before"))

	g.Expect(cp.KillAPIServer(t.Context())).To(Succeed())
	o.filters++ // the manager's own watch of metadata may leave a goroutine behind
	restart := sync.OnceValue(func() error { return cp.StartAPIServer(context.Background()) })
	t.Cleanup(func() { g.Expect(restart()).To(Succeed()) }) // also if the test fails
	for name := range before {
		state := o.waitReason(t, name, clustercache.ReasonUnreachable)
		g.Expect(state.Health.ConsecutiveFailures).To(BeNumerically(">=", 2))
		g.Expect(state.Health.LastError).To(HaveOccurred())
	}
	expectNotConnected(t, o, "one", clustercache.ReasonUnreachable)

	restarted := time.Now()
	g.Expect(restart()).To(Succeed())
	for name := range before {
		after := o.waitConnected(t, name)
		g.Expect(after.Identity).To(Equal(before[name].Identity))
		g.Expect(after.Epoch).To(Equal(before[name].Epoch + 1))
	}
	c.forget()
	create(t, configMap(ns, "after"))
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create after"), "the watch resumed")
	for _, event := range auditLog(t, restarted) {
		g.Expect(event.User.Username == operatorUser && event.what() == "create serviceaccounts/token").
			To(BeFalse(), "the operator replaced a token that was still valid: %s", event)
	}
}
