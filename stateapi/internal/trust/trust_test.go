package trust

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newAuthority(t testing.TB, valid time.Duration) *certs.Authority {
	t.Helper()
	authority, err := certs.NewAuthorityFor("test", valid)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return authority
}

func keyOf(t testing.TB, authority *certs.Authority) []byte {
	t.Helper()
	key, err := authority.KeyPEM()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return key
}

func TestKeyringRoundTrip(t *testing.T) {
	one, two, three := newAuthority(t, time.Hour), newAuthority(t, time.Hour), newAuthority(t, time.Hour)
	trusted := []*x509.Certificate{three.Certificate(), two.Certificate()}
	for name, k := range map[string]keyring{
		"empty":   {},
		"signer":  {signer: one},
		"all":     {signer: one, successor: two, trusted: trusted},
		"trusted": {trusted: trusted},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			data, err := k.data()
			g.Expect(err).NotTo(HaveOccurred())
			read, err := readKeyring(data)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(encode(read.roots(time.Now()))).To(Equal(encode(k.roots(time.Now()))))
			again, err := read.data()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(again).To(Equal(data), "also the keys")
			g.Expect(read.roots(time.Now().Add(2*time.Hour))).To(BeEmpty(), "expired")
		})
	}
}

// Bad data is an error that names the key of the Secret, and does not have what is in it.
func TestBadKeyring(t *testing.T) {
	authority, other := newAuthority(t, time.Hour), newAuthority(t, time.Hour)
	leaf, leafKey, err := authority.Issue(certs.Request{CommonName: "leaf", Hosts: []string{"leaf"}, ValidFor: time.Hour})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	cert, key := authority.PEM(), keyOf(t, authority)
	garbage := []byte("SECRET garbage")
	type data = map[string][]byte
	for name, tc := range map[string]struct {
		data data
		err  string
	}{
		"no key": {
			data{signerCert: cert},
			"tls.crt and tls.key: reading an authority: tls: failed to find any PEM data in key",
		},
		"no certificate": {
			data{signerKey: key},
			"tls.crt and tls.key: reading an authority: tls: failed to find any PEM data in cert",
		},
		"garbage": {
			data{signerCert: garbage, signerKey: garbage},
			"tls.crt and tls.key: reading an authority",
		},
		"garbage for a key": {
			data{signerCert: cert, signerKey: garbage},
			"tls.crt and tls.key: reading an authority",
		},
		"exchanged": {
			data{signerCert: key, signerKey: cert},
			"tls.crt and tls.key: reading an authority",
		},
		"another's key": {
			data{signerCert: cert, signerKey: keyOf(t, other)},
			"private key does not match public key",
		},
		"leaf": {
			data{signerCert: leaf, signerKey: leafKey},
			"tls.crt and tls.key: the certificate is not that of an authority",
		},
		"no next key": {
			data{signerCert: cert, signerKey: key, successorCert: cert},
			"next.crt and next.key: reading an authority",
		},
		"no next certificate": {
			data{signerCert: cert, signerKey: key, successorKey: key},
			"next.crt and next.key: reading an authority",
		},
		"next is a leaf": {
			data{successorCert: leaf, successorKey: leafKey},
			"next.crt and next.key: the certificate is not that of an authority",
		},
		"trusted is garbage": {
			data{signerCert: cert, signerKey: key, trustedCerts: garbage},
			"ca.crt: data does not contain",
		},
		"trusted is a key": {data{trustedCerts: key}, "ca.crt: data does not contain"},
		"trusted is a leaf": {
			data{trustedCerts: append(authority.PEM(), leaf...)},
			`ca.crt: the certificate of "CN=leaf" is not that of an authority`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			k, err := readKeyring(tc.data)
			g.Expect(err).To(MatchError(ContainSubstring(tc.err)))
			g.Expect(k).To(Equal(keyring{}))
			text := fmt.Sprintf("%+v", err)
			g.Expect(text).NotTo(ContainSubstring("SECRET"))
			for line := range strings.Lines(string(key)) {
				if len(line) > 30 {
					g.Expect(text).NotTo(ContainSubstring(strings.TrimSpace(line)))
				}
			}
		})
	}
}

// secrets has one Secret, as the API server does: an update of an old version is a conflict.
type secrets struct {
	corev1client.SecretInterface

	mu      sync.Mutex
	secret  *corev1.Secret  // guarded by mu
	version int             // guarded by mu
	err     error           // guarded by mu; of each read
	read    func()          // guarded by mu; is called by Get after it has read
	seen    map[string]bool // guarded by mu; what was written to tls.crt
}

func newSecrets() *secrets {
	return &secrets{
		secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}},
		seen:   map[string]bool{},
	}
}

func (s *secrets) Secrets(string) corev1client.SecretInterface { return s }

func (s *secrets) Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	secret, err, read := s.secret.DeepCopy(), s.err, s.read
	s.mu.Unlock()
	if read != nil {
		read()
	}
	return secret, err
}

func (s *secrets) Update(_ context.Context, secret *corev1.Secret, _ metav1.UpdateOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if secret.ResourceVersion != s.secret.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, secret.Name, nil)
	}
	s.set(secret.DeepCopy().Data)
	s.seen[string(secret.Data[signerCert])] = true
	return s.secret, nil
}

// set is what another program does.
func (s *secrets) set(data map[string][]byte) {
	s.version++
	s.secret.Data, s.secret.ResourceVersion = data, fmt.Sprint(s.version)
}

func (s *secrets) setAuthority(t testing.TB, authority *certs.Authority) {
	t.Helper()
	data, err := (&keyring{signer: authority}).data()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(data)
}

// fail makes reading the Secret fail; nil ends that.
func (s *secrets) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// replica is a replica of the fleet.
type replica struct {
	*Authority
	leaf *Leaf
	skew time.Duration // of its clock
	at   time.Time     // when it read the Secret
}

func newReplica(s *secrets, readOnly bool) *replica {
	a := New(s, Options{Namespace: "n", Name: "s", ReadOnly: readOnly, Times: DefaultTimes()})
	return &replica{Authority: a, leaf: a.NewLeaf("peer", true, "member")}
}

func (r *replica) reads(t testing.TB) {
	t.Helper()
	NewWithT(t).Expect(r.refresh(t.Context(), time.Now().Add(r.skew))).To(Succeed())
	r.at = time.Now()
}

// trusts returns an error if a replica does not trust the certificate of another one, as a server
// or as a client.
func (r *replica) trusts(leaf *Leaf) error {
	pair, err := leaf.Certificate()
	if err != nil {
		return err
	}
	roots, _ := r.Pool()
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		DNSName:     "member",
		Roots:       roots,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		CurrentTime: time.Now().Add(r.skew),
	})
	return err
}

const day = 24 * time.Hour

// Each row is a moment in the life of authorities, and what the next keyring is.
func TestStep(t *testing.T) {
	times := DefaultTimes()
	now := time.Now()
	first := newAuthority(t, times.Lifetime)         // valid from now - ClockSkew for 90 days
	second := newAuthority(t, times.Lifetime+60*day) // as one that was made later
	short := newAuthority(t, time.Hour)
	made := newAuthority(t, times.Lifetime)
	certificate := func(a *certs.Authority) []*x509.Certificate { return []*x509.Certificate{a.Certificate()} }
	for name, tc := range map[string]struct {
		at      time.Duration
		is      keyring
		becomes keyring
		changed bool
	}{
		"nothing": {0, keyring{}, keyring{signer: made}, true},
		"new":     {0, keyring{signer: first}, keyring{signer: first}, false},
		"more than a third is left": {
			60*day - time.Hour,
			keyring{signer: first},
			keyring{signer: first},
			false,
		},
		"less than a third is left": {
			60*day + time.Hour,
			keyring{signer: first},
			keyring{signer: first, successor: made},
			true,
		},
		"made by a clock that is ahead": {
			-time.Hour,
			keyring{signer: first},
			keyring{signer: made, trusted: certificate(first)},
			true,
		},
		"a successor waits": {
			times.Overlap - time.Second,
			keyring{signer: first, successor: second},
			keyring{signer: first, successor: second},
			false,
		},
		"a successor's turn": {
			times.Overlap + time.Minute,
			keyring{signer: first, successor: second},
			keyring{signer: second, trusted: certificate(first)},
			true,
		},
		"trusted until it expires": {
			90*day - time.Hour,
			keyring{signer: second, trusted: certificate(first)},
			keyring{signer: second, trusted: certificate(first)},
			false,
		},
		"trusted no more": {
			90*day + time.Hour,
			keyring{signer: second, trusted: certificate(first)},
			keyring{signer: second},
			true,
		},
		"all were away": {
			91 * day,
			keyring{signer: first, successor: second},
			keyring{signer: second},
			true,
		},
		"all were away for long": {
			200 * day,
			keyring{signer: first, successor: second, trusted: certificate(short)},
			keyring{signer: made},
			true,
		},
		"all were away, none waited": {91 * day, keyring{signer: first}, keyring{signer: made}, true},
		"another's successor only":   {0, keyring{successor: second}, keyring{signer: second}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			before := tc.is.trusted
			next, changed, err := times.step(tc.is, now.Add(tc.at), func() (*certs.Authority, error) { return made, nil })
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(changed).To(Equal(tc.changed))
			g.Expect(next.signer).To(BeIdenticalTo(tc.becomes.signer))
			g.Expect(next.successor).To(BeIdenticalTo(tc.becomes.successor))
			g.Expect(encode(next.trusted)).To(Equal(encode(tc.becomes.trusted)))
			g.Expect(tc.is.trusted).To(Equal(before), "the keyring of before is not changed")
		})
	}
}

// For two years, replicas come and go, with clocks that differ. Whichever of them has read the
// Secret in the last interval trusts the certificates of all that have, also one that has just
// started. In between all of them are away for longer than an authority is valid.
func TestTwoYears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newSecrets()
		random := rand.New(rand.NewPCG(1, 0)) //nolint:gosec // not a secret
		begin := time.Now()
		var replicas []*replica
		check := func(r *replica) { // which has just read
			for _, other := range replicas {
				if time.Since(other.at) > readInterval {
					continue
				}
				if err := cmp.Or(r.trusts(other.leaf), other.trusts(r.leaf)); err != nil {
					t.Fatalf("after %s: %v", time.Since(begin), err)
				}
			}
		}
		join := func() {
			r := newReplica(s, false)
			r.skew = time.Duration(random.Int64N(int64(4*time.Minute))) - 2*time.Minute
			r.reads(t)
			replicas = append(replicas, r)
			check(r)
		}
		away := false
		for time.Since(begin) < 2*365*day {
			switch {
			case len(replicas) < 2 || len(replicas) < 4 && random.IntN(5) == 0:
				join()
			case random.IntN(20) == 0:
				replicas = replicas[1:]
			}
			// All read within an interval, in any order.
			for _, n := range random.Perm(len(replicas)) {
				time.Sleep(time.Duration(random.Int64N(int64(readInterval) / int64(len(replicas)))))
				replicas[n].reads(t)
				check(replicas[n])
				justStarted := newReplica(s, false)
				justStarted.reads(t)
				check(justStarted)
			}
			// In a pause, only certificates expire: it ends before the Secret may change.
			k, err := readKeyring(s.secret.Data)
			g.Expect(err).NotTo(HaveOccurred())
			next := k.signer.Certificate().NotAfter.Add(-DefaultTimes().Lifetime / 3)
			if k.successor != nil {
				next = k.successor.Certificate().NotBefore.Add(certs.ClockSkew + DefaultTimes().Overlap)
			}
			pause := min(2*day, time.Until(next)-3*time.Minute)
			if time.Since(begin) > 365*day && !away {
				away, pause, replicas = true, 200*day, nil
			}
			time.Sleep(pause)
		}
		// One at the beginning, one for each 60 days or so, and one after the absence.
		g.Expect(len(s.seen)).To(BeNumerically("~", 11, 2))
		k, err := readKeyring(s.secret.Data)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(k.trusted)).To(BeNumerically("<=", 1), "what has expired is removed")
	})
}

// However many replicas find an empty Secret at the same time, one of them makes the authority, and
// all trust each other at once.
func TestSameTime(t *testing.T) {
	g := NewWithT(t)
	s := newSecrets()
	replicas := make([]*replica, 5)
	var reading sync.WaitGroup
	var reads atomic.Int32
	all := make(chan struct{})
	s.read = func() { // none writes before all have read
		if reads.Add(1) == int32(len(replicas)) {
			close(all)
		}
		<-all
	}
	for n := range replicas {
		replicas[n] = newReplica(s, false)
		reading.Go(func() { replicas[n].reads(t) })
	}
	reading.Wait()
	g.Expect(s.seen).To(HaveLen(1))
	g.Expect(s.version).To(Equal(1))
	for _, r := range replicas {
		for _, other := range replicas {
			g.Expect(r.trusts(other.leaf)).To(Succeed())
		}
	}
}

// An authority of another program that has expired: that is said, and nothing is issued by it.
func TestExpiredReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newSecrets()
		r := newReplica(s, true)
		g.Expect(r.refresh(t.Context(), time.Now())).To(MatchError("the Secret has no tls.crt yet"))
		_, err := r.leaf.Certificate()
		g.Expect(err).To(MatchError("no certificate: there is no authority yet"))

		s.setAuthority(t, newAuthority(t, 30*time.Hour))
		r.reads(t)
		first, _ := r.leaf.CurrentCertKeyContent()
		time.Sleep(17 * time.Hour)
		r.reads(t)
		renewed, _ := r.leaf.CurrentCertKeyContent()
		g.Expect(renewed).NotTo(Equal(first))
		g.Expect(r.trusts(r.leaf)).To(Succeed())

		time.Sleep(17 * time.Hour)
		expired := MatchError("tls.crt has expired at 2000-01-02T06:00:00Z, " +
			"and the program that keeps the Secret has not replaced it")
		g.Expect(r.refresh(t.Context(), time.Now())).To(expired)
		last, _ := r.leaf.CurrentCertKeyContent()
		g.Expect(last).To(Equal(renewed), "not renewed by an authority that has expired")
		g.Expect(r.trusts(r.leaf)).NotTo(Succeed())
		_, verifies := r.VerifyOptions()
		g.Expect(verifies).To(BeFalse())

		late := newReplica(s, true)
		g.Expect(late.refresh(t.Context(), time.Now())).To(expired)
		_, err = late.leaf.Certificate()
		g.Expect(err).To(MatchError("no certificate: the authority has expired at 2000-01-02T06:00:00Z"))
		g.Expect(s.seen).To(BeEmpty(), "nothing was written")

		s.setAuthority(t, newAuthority(t, day))
		r.reads(t)
		late.reads(t)
		g.Expect(r.trusts(late.leaf)).To(Succeed())
		g.Expect(late.trusts(r.leaf)).To(Succeed())
	})
}

// Another program replaces the authority: those who knew the earlier one trust it until all have
// read the Secret, and no longer.
func TestReplacedReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newSecrets()
		s.setAuthority(t, newAuthority(t, 30*day))
		a, b := newReplica(s, true), newReplica(s, true)
		a.reads(t)
		b.reads(t)
		_, changed := a.Pool()
		notified := 0
		a.AddListener(listener(func() { notified++ }))
		s.secret.Data = nil // for a moment
		g.Expect(a.refresh(t.Context(), time.Now())).NotTo(Succeed())
		s.setAuthority(t, newAuthority(t, 60*day))
		a.reads(t)
		g.Expect(changed).To(BeClosed())
		g.Expect(notified).To(Equal(1))
		g.Expect(a.trusts(b.leaf)).To(Succeed(), "a certificate of the authority of before")
		earlier, _ := a.leaf.CurrentCertKeyContent()
		time.Sleep(readOverlap - time.Second)
		a.reads(t)
		g.Expect(b.trusts(a.leaf)).To(Succeed(), "also of a replica that has not read the Secret yet")
		b.reads(t)
		time.Sleep(time.Second)
		a.reads(t)
		now, _ := a.leaf.CurrentCertKeyContent()
		g.Expect(now).NotTo(Equal(earlier), "when all have read it")
		g.Expect(b.trusts(a.leaf)).To(Succeed())
		g.Expect(a.trusts(b.leaf)).To(Succeed())
		_, changed = a.Pool()
		a.reads(t)
		g.Expect(changed).NotTo(BeClosed(), "nothing is new")
		g.Expect(notified).To(Equal(1))
		time.Sleep(DefaultTimes().Overlap - readOverlap - time.Second)
		a.reads(t)
		b.reads(t)
		g.Expect(a.roots).To(HaveLen(2))
		time.Sleep(time.Second)
		a.reads(t)
		g.Expect(a.roots).To(HaveLen(1))
		g.Expect(notified).To(Equal(2))
		g.Expect(a.trusts(b.leaf)).To(Succeed())
	})
}

// Of another program's Secret, ca.crt has who issued the authority, and others: they are no
// replicas.
func TestIssuerReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newSecrets()
		company := newAuthority(t, 30*day)
		s.setAuthority(t, newAuthority(t, 30*day))
		s.secret.Data[trustedCerts] = company.PEM()
		r := newReplica(s, true)
		r.reads(t)
		stranger := &Leaf{
			request: r.leaf.request,
			signer:  func() *certs.Authority { return company },
		}
		g.Expect(stranger.RenewIfDue(time.Now())).To(Succeed())
		g.Expect(r.trusts(stranger)).NotTo(Succeed())
		keeps := newReplica(s, false)
		keeps.reads(t)
		g.Expect(keeps.trusts(stranger)).To(Succeed(), "replicas that keep the Secret have authorities of before there")
	})
}

// What is removed from the Secret is not trusted after a time, whatever the rest of it is then, and
// whether or not it can be read.
func TestRemoved(t *testing.T) {
	for name, remove := range map[string]func(s *secrets){
		"the certificate and key": func(s *secrets) { s.secret.Data = nil },
		"the certificate, and the key is not one": func(s *secrets) {
			s.secret.Data = map[string][]byte{signerKey: []byte("no key")}
		},
		"the certificate, which is another one, without a key": func(s *secrets) {
			s.secret.Data = map[string][]byte{signerCert: newAuthority(t, day).PEM()}
		},
		"the Secret": func(s *secrets) {
			s.fail(apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "s"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s := newSecrets()
				s.setAuthority(t, newAuthority(t, 30*day))
				r := newReplica(s, true)
				r.reads(t)
				g.Expect(r.trusts(r.leaf)).To(Succeed())
				remove(s)
				g.Expect(r.refresh(t.Context(), time.Now())).NotTo(Succeed())
				g.Expect(r.trusts(r.leaf)).To(Succeed(), "for a time")
				s.fail(apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "s", nil))
				time.Sleep(DefaultTimes().Overlap)
				g.Expect(r.refresh(t.Context(), time.Now())).NotTo(Succeed())
				g.Expect(r.trusts(r.leaf)).NotTo(Succeed())
				before, _ := r.leaf.CurrentCertKeyContent()
				time.Sleep(validFor)
				g.Expect(r.refresh(t.Context(), time.Now())).NotTo(Succeed())
				after, _ := r.leaf.CurrentCertKeyContent()
				g.Expect(after).To(Equal(before), "issues nothing")
			})
		})
	}
}

// What is left in a Secret that cannot be read as a whole is trusted, and issues certificates.
func TestPartlyUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newSecrets()
		s.setAuthority(t, newAuthority(t, 30*day))
		r := newReplica(s, true)
		r.reads(t)
		before, _ := r.leaf.CurrentCertKeyContent()
		s.secret.Data[signerKey] = []byte("no key")
		s.secret.Data[trustedCerts] = []byte("no certificates")
		g.Expect(r.refresh(t.Context(), time.Now())).To(MatchError(ContainSubstring("tls.crt and tls.key")))
		time.Sleep(validFor)
		g.Expect(r.refresh(t.Context(), time.Now())).NotTo(Succeed())
		g.Expect(r.trusts(r.leaf)).To(Succeed())
		after, _ := r.leaf.CurrentCertKeyContent()
		g.Expect(after).NotTo(Equal(before), "it is renewed by the key in memory")
	})
}

type listener func()

func (l listener) Enqueue() { l() }

// What goes wrong is said once, and certificates are renewed meanwhile.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newSecrets()
		r := newReplica(s, false)
		var mu sync.Mutex
		var lines []string
		logger := funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, args)
		}, funcr.Options{})
		logged := func() string {
			mu.Lock()
			defer mu.Unlock()
			text := strings.Join(lines, "\n")
			lines = nil
			return text
		}
		ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), logger))
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		synctest.Wait()
		g.Expect(logged()).To(BeEmpty())
		first, _ := r.leaf.CurrentCertKeyContent()
		g.Expect(first).NotTo(BeEmpty())

		s.fail(apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "s", nil))
		time.Sleep(23 * time.Hour)
		text := logged()
		g.Expect(strings.Count(text, "cannot trust each other")).To(Equal(1))
		g.Expect(text).To(And(ContainSubstring(`"reason"="reading the Secret: secrets \"s\" is forbidden`),
			ContainSubstring(`"secret"="n/s"`)))
		renewed, key := r.leaf.CurrentCertKeyContent()
		g.Expect(renewed).NotTo(Equal(first), "renewed by the authority in memory")
		_, err := tls.X509KeyPair(renewed, key)
		g.Expect(err).NotTo(HaveOccurred())

		s.fail(apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "s"))
		time.Sleep(time.Minute)
		g.Expect(logged()).To(ContainSubstring("the Secret does not exist: create it without data"))
		s.fail(nil)
		time.Sleep(time.Minute)
		g.Expect(logged()).To(ContainSubstring("The replicas of the fleet trust each other"))
		cancel()
		running.Wait()
	})
}

// A replica with a wrong clock changes nothing in the Secret: it would take an authority for
// expired that is valid, and make one that is not valid yet.
func TestWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		for _, ahead := range []time.Duration{time.Hour, -time.Hour, time.Minute} {
			s, clock := newSecrets(), &Clock{}
			answers := clock.RoundTripper(testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
				header := http.Header{"Date": {time.Now().Add(-ahead).UTC().Format(http.TimeFormat)}}
				return &http.Response{Header: header, Body: http.NoBody}, nil
			}))
			a := New(s, Options{Namespace: "n", Name: "s", Clock: clock, Times: DefaultTimes()})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com", http.NoBody)
			g.Expect(err).NotTo(HaveOccurred())
			resp, err := answers.RoundTrip(req)
			g.Expect(err).NotTo(HaveOccurred())
			_ = resp.Body.Close()
			if err = a.refresh(t.Context(), time.Now()); ahead == time.Minute {
				g.Expect(err).NotTo(HaveOccurred())
				continue
			}
			g.Expect(err).To(MatchError(MatchRegexp(`the clock of this replica differs by (1h0m0s|1h0m1s|59m59s) from that of`)))
			g.Expect(s.seen).To(BeEmpty())
		}
	})
}
