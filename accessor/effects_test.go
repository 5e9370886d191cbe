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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// counted is a credential that counts what is done with it.
type counted struct {
	credential.Credential
	closed    chan struct{}
	discarded time.Time
}

func (c *counted) Close()                   { close(c.closed) }
func (c *counted) Discard(before time.Time) { c.discarded = before }

// What the machine says of credentials, attempts and connections is done, at once or after the
// lock.
func TestEffectsOnSecrets(t *testing.T) {
	g := NewWithT(t)
	set := NewSet(Options{HealthProbe: healthprobe.Options{}.WithDefaults(), ConnectBackoff: never,
		Logger: logr.Discard(),
		Client: ClientOptions{Timeout: time.Hour}})
	defer set.end(nil)
	a := newAccessor(set, client.ObjectKey{Name: "red"})
	creds := map[lifecycle.CredentialID]*counted{}
	for id := lifecycle.CredentialID(1); id <= 3; id++ {
		creds[id] = &counted{closed: make(chan struct{})}
		a.credentials = append(a.credentials, &boundCredential{id: id, cred: creds[id]})
	}
	life, end := context.WithCancelCause(context.Background())
	conn := &connection{life: life, end: end}
	there := before{conn: conn}
	after := func(e lifecycle.Effect) { a.afterEffectLocked(e, brought{}, there)() }

	a.commitLocked(lifecycle.UseCredential{Credential: 2}, brought{}, there)
	g.Expect(conn.credential.Load().id).To(BeEquivalentTo(2))

	asked := time.Now()
	after(lifecycle.DiscardSecret{Credential: 1, Before: asked})
	g.Expect(creds[1].discarded).To(Equal(asked))
	after(lifecycle.CloseCredential{Credential: 1})
	g.Expect(creds[1].closed).To(BeClosed())
	after(lifecycle.RetireCredential{Credential: 3})
	g.Expect(creds[3].closed).NotTo(BeClosed(), "requests may still use it")
	g.Expect(a.credentials).To(HaveLen(1))

	attemptLife, cancel := context.WithCancel(context.Background())
	a.attempt = &attempt{ctx: attemptLife, cancel: cancel}
	a.commitLocked(lifecycle.CancelAttempt{}, brought{}, there)
	g.Expect(attemptLife.Err()).To(HaveOccurred())

	a.commitLocked(lifecycle.EndConnection{}, brought{}, there)
	g.Expect(conn.err()).To(MatchError(ErrNotConnected))
	g.Expect(conn.credential.Load()).To(BeNil(), "a handle that is kept keeps no secret")
	g.Eventually(creds[3].closed).Should(BeClosed(), "no request of a connection that ended uses it")
}

// Every field of a resolution that a decision needs reaches the machine.
func TestResolutionOf(t *testing.T) {
	g := NewWithT(t)
	got := resolutionOf(credential.Resolution{Key: "key", Version: "version", Source: "source", KeepCurrent: true,
		Impersonated:   true,
		ServiceAccount: types.NamespacedName{Name: "sa"}, Expected: Identity{Username: "user"}})
	g.Expect(got).
		To(Equal(lifecycle.Resolution{Key: "key", Version: "version", Source: "source", KeepCurrent: true,
			Impersonated:   true,
			ServiceAccount: types.NamespacedName{Name: "sa"}, Expected: Identity{Username: "user"}}))
	fields := reflect.ValueOf(got)
	for i := range fields.NumField() {
		g.Expect(fields.Field(i).IsZero()).To(BeFalse(), fields.Type().Field(i).Name)
	}
}

// A connection that is kept after its end does not keep the credential that it was made with, nor
// does anything else.
func TestNothingKeepsACredential(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rare, never)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	found, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	conn := found.(*identityAccessor).published.Load().conn
	bound := weak.Make(conn.credential.Load())
	found = nil
	d.gone("red")
	g.Eventually(func() bool {
		runtime.GC()
		return bound.Value() == nil
	}).WithTimeout(patience).Should(BeTrue())
	runtime.KeepAlive(conn)
}
