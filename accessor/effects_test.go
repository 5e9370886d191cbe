package accessor

import (
	"context"
	"reflect"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// countingCredential is a credential that records calls.
type countingCredential struct {
	identity.Credential
	closed    chan struct{}
	discarded time.Time
}

func (*countingCredential) TransportRequirement() identity.TransportRequirement {
	return identity.TransportRequirement{}
}
func (c *countingCredential) Close()                   { close(c.closed) }
func (c *countingCredential) Discard(before time.Time) { c.discarded = before }

// The accessor carries out the machine's effects on credentials, attempts and connections: commit
// effects at once, after effects without the lock.
func TestEffectsOnSecrets(t *testing.T) {
	g := NewWithT(t)
	set := NewSet(Options{
		HealthProbe:    connstate.ProbeOptions{}.WithDefaults(),
		ConnectBackoff: noRetry,
		Logger:         logr.Discard(),
		Client:         ClientOptions{Config: rest.Config{Timeout: time.Hour}},
	})
	defer set.end(nil)
	a := newAccessor(set, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "red"}}, nil)
	membership, err := set.shared.targets.Join(&rest.Config{Host: "https://here:6443"}, nil, &targets.Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	defer membership.Leave()
	creds := map[lifecycle.CredentialID]*countingCredential{}
	for id := lifecycle.CredentialID(1); id <= 3; id++ {
		creds[id] = &countingCredential{closed: make(chan struct{})}
		a.credentials = append(a.credentials, openCredential{id,
			connection.Bind(creds[id], identity.Resolution{}, membership.Target)})
	}
	conn := connection.New(set.life, &set.tasks, &set.connections, connection.Extension{Key: a.key}, 1, membership.Target,
		a.credentials[0].Credential, connection.Observers{})
	previous := previousState{conn: conn}
	runEffect := func(e lifecycle.Effect) { a.afterEffectLocked(e, eventPayload{}, previous)() }

	a.commitLocked(lifecycle.UseCredential{Credential: 2}, eventPayload{}, previous)
	g.Expect(conn.Credential()).To(BeIdenticalTo(a.credentials.get(2)))

	sentAt := time.Now()
	runEffect(lifecycle.DiscardSecret{Credential: 1, Before: sentAt})
	g.Expect(creds[1].discarded).To(Equal(sentAt))
	runEffect(lifecycle.CloseCredential{Credential: 1})
	g.Expect(creds[1].closed).To(BeClosed())
	runEffect(lifecycle.RetireCredential{Credential: 3})
	g.Expect(creds[3].closed).NotTo(BeClosed(), "requests may still use the credential")
	g.Expect(a.credentials).To(HaveLen(1))

	attemptLife, cancel := context.WithCancel(context.Background())
	a.attempt = &attempt{ctx: attemptLife, cancel: cancel}
	a.commitLocked(lifecycle.CancelAttempt{}, eventPayload{}, previous)
	g.Expect(attemptLife.Err()).To(HaveOccurred())

	a.commitLocked(lifecycle.EndConnection{}, eventPayload{}, previous)
	g.Expect(conn.Err()).To(MatchError(connstate.ErrNotConnected))
	g.Expect(conn.Credential()).To(BeNil(), "a retained handle does not retain a secret")
	g.Eventually(creds[3].closed).Should(BeClosed(), "no request of an ended connection uses the credential")
}

// resolutionOf copies every field of a resolution that a decision needs.
func TestResolutionOf(t *testing.T) {
	g := NewWithT(t)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Generation: 7, ResourceVersion: "8"}}
	got := resolutionOf(object, identity.Resolution{
		Key:            "key",
		Version:        "version",
		Source:         "source",
		KeepCurrent:    true,
		Impersonated:   true,
		Reference:      identity.Reference{Name: "reference"},
		ServiceAccount: types.NamespacedName{Name: "sa"},
		Expected:       connstate.Identity{Username: "user"},
	})
	g.Expect(got).
		To(Equal(lifecycle.Resolution{
			Key:            "key",
			Version:        "version",
			Source:         "source",
			KeepCurrent:    true,
			Impersonated:   true,
			Reference:      "reference",
			ServiceAccount: types.NamespacedName{Name: "sa"},
			Expected:       connstate.Identity{Username: "user"},
		}))
	mapped := identity.Resolution{Reference: identity.Reference{WholeObject: true}}
	g.Expect(resolutionOf(object, mapped).ObjectVersion).To(Equal("7"), "only the whole object tells")
	object.Generation = 0
	g.Expect(resolutionOf(object, mapped).ObjectVersion).To(Equal("resourceVersion 8"))
	got.ObjectVersion = "set where Source is not"
	fields := reflect.ValueOf(got)
	for i := range fields.NumField() {
		g.Expect(fields.Field(i).IsZero()).To(BeFalse(), fields.Type().Field(i).Name)
	}
}

// After the extension is removed, nothing references the credential, not even a retained
// connection.
func TestNothingKeepsACredential(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	conn := a.published.Load().conn
	bound := weak.Make(conn.Credential())
	g.Expect(func() { conn.Resolution().Open() }).To(Panic(), "the connection cannot open the credential again")
	d.deleteExtension("red")
	g.Eventually(func() bool {
		runtime.GC()
		return bound.Value() == nil
	}).WithTimeout(patience).Should(BeTrue())
	runtime.KeepAlive(conn)
}
