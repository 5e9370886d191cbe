package trust

import (
	"context"
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientset "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/latchkey-dev/latchkey/internal/certs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSecret returns a client with the Secret, which is empty.
func newSecret(data map[string][]byte) *clientset.Clientset {
	return clientset.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "authority"},
		Data:       data,
	})
}

func newAuthority(client *clientset.Clientset, readOnly bool) *Authority {
	return New(client.CoreV1(), Options{Namespace: "ns", Name: "authority", ReadOnly: readOnly, Times: DefaultTimes()})
}

// trusts reports whether a replica trusts the certificate of another one, which has the name.
func trusts(a *Authority, leaf *Leaf, name string) error {
	pair, err := leaf.Certificate()
	if err != nil {
		return err
	}
	pool, _ := a.Pool()
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots:       pool,
		DNSName:     name,
		CurrentTime: time.Now(),
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// For two years, any two replicas trust each other, also one that starts just now, and nothing that
// has expired is kept.
func TestYears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		client := newSecret(nil)
		one, two := newAuthority(client, false), newAuthority(client, false)
		g.Expect(one.refresh(t.Context(), time.Now())).To(Succeed())
		g.Expect(two.refresh(t.Context(), time.Now())).To(Succeed())
		leaf := map[*Authority]*Leaf{one: one.NewLeaf("one", true, "one"), two: two.NewLeaf("two", true, "two")}
		signers := map[string]bool{}
		for end := time.Now().Add(2 * 365 * 24 * time.Hour); time.Now().Before(end); {
			time.Sleep(4 * time.Minute)
			g.Expect(one.refresh(t.Context(), time.Now())).To(Succeed())
			started := newAuthority(client, false)
			g.Expect(started.refresh(t.Context(), time.Now())).To(Succeed())
			g.Expect(trusts(started, leaf[two], "two")).To(Succeed(), "one that starts, and one that has not read again")
			g.Expect(trusts(two, started.NewLeaf("new", true, "new"), "new")).To(Succeed(), "and the other way")
			time.Sleep(2 * time.Minute)
			g.Expect(two.refresh(t.Context(), time.Now())).To(Succeed())
			g.Expect(trusts(one, leaf[two], "two")).To(Succeed())
			g.Expect(trusts(two, leaf[one], "one")).To(Succeed())
			signers[string(one.signer().PEM())] = true
			g.Expect(len(one.roots)).To(BeNumerically("<=", 3))
			time.Sleep(7 * time.Hour)
		}
		g.Expect(len(signers)).To(BeNumerically(">", 10), "authorities follow each other")
		secret, err := client.CoreV1().Secrets("ns").Get(t.Context(), "authority", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(secret.Data[trustedCerts])).To(BeNumerically("<", 3000))
	})
}

// Of two replicas that make an authority, one is first, and both use it.
func TestOneAuthority(t *testing.T) {
	g := NewWithT(t)
	client := newSecret(nil)
	conflicts := true // the other one is faster
	client.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return conflicts, nil,
			apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "authority", errors.New("changed"))
	})
	one, other := newAuthority(client, false), newAuthority(client, false)
	g.Expect(one.refresh(t.Context(), time.Now())).To(MatchError(ContainSubstring("writing the Secret")))
	g.Expect(one.CurrentCABundleContent()).To(BeEmpty(), "what was not written is not used")
	conflicts = false
	g.Expect(other.refresh(t.Context(), time.Now())).To(Succeed())
	g.Expect(one.refresh(t.Context(), time.Now())).To(Succeed())
	g.Expect(one.CurrentCABundleContent()).To(Equal(other.CurrentCABundleContent()))
}

// A Secret that another program keeps is only read. What was trusted before is trusted until it
// expires; an authority that has expired is an error that says so.
func TestReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		client := newSecret(nil)
		a := newAuthority(client, true)
		g.Expect(a.refresh(t.Context(), time.Now())).To(MatchError("the Secret has no tls.crt yet"))
		keep := func() *certs.Authority {
			kept, err := certs.NewAuthorityFor("cert-manager", time.Hour)
			g.Expect(err).NotTo(HaveOccurred())
			data, err := keyring{signer: kept}.data()
			g.Expect(err).NotTo(HaveOccurred())
			_, err = client.CoreV1().Secrets("ns").Update(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "authority"},
				Data:       data,
			}, metav1.UpdateOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			return kept
		}
		keep()
		g.Expect(a.refresh(t.Context(), time.Now())).To(Succeed())
		other := newAuthority(client, true)
		g.Expect(other.refresh(t.Context(), time.Now())).To(Succeed())
		leaf := other.NewLeaf("other", true, "other")
		time.Sleep(30 * time.Minute)
		keep()
		client.ClearActions()
		g.Expect(a.refresh(t.Context(), time.Now())).To(Succeed())
		g.Expect(trusts(a, leaf, "other")).To(Succeed(), "the other one has not read the change yet")
		time.Sleep(45 * time.Minute)
		g.Expect(a.refresh(t.Context(), time.Now())).To(Succeed())
		g.Expect(trusts(a, leaf, "other")).NotTo(Succeed())
		time.Sleep(time.Hour)
		g.Expect(a.refresh(t.Context(), time.Now())).To(MatchError(And(ContainSubstring("the fleet's authority has expired"),
			ContainSubstring("another program keeps it"))))
		g.Expect(a.CurrentCABundleContent()).To(BeEmpty(), "it is not trusted any more")
		for _, action := range client.Actions() {
			g.Expect(action.GetVerb()).To(Equal("get"))
		}
	})
}

// After all replicas were away for longer than an authority lasts, there is another one.
func TestAllWereAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		client := newSecret(nil)
		g.Expect(newAuthority(client, false).refresh(t.Context(), time.Now())).To(Succeed())
		time.Sleep(200 * 24 * time.Hour)
		a := newAuthority(client, false)
		g.Expect(a.refresh(t.Context(), time.Now())).To(Succeed())
		g.Expect(trusts(a, a.NewLeaf("one", true, "one"), "one")).To(Succeed())
		g.Expect(a.roots).To(HaveLen(1))
	})
}

// What the Secret has that is no authority is an error that names the key, and never its content.
func TestBadSecrets(t *testing.T) {
	g := NewWithT(t)
	authority, err := certs.NewAuthorityFor("a", time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	key, err := authority.KeyPEM()
	g.Expect(err).NotTo(HaveOccurred())
	leaf, leafKey, err := authority.Issue(certs.Request{Hosts: []string{"x"}, ValidFor: time.Hour})
	g.Expect(err).NotTo(HaveOccurred())
	for want, data := range map[string]map[string][]byte{
		"tls.crt and tls.key: reading an authority":                        {"tls.crt": authority.PEM()},
		"tls.crt and tls.key: the certificate is not that of an authority": {"tls.crt": leaf, "tls.key": leafKey},
		"next.crt and next.key: reading an authority": {"tls.crt": authority.PEM(), "tls.key": key,
			"next.crt": authority.PEM(), "next.key": leafKey},
		"ca.crt: ": {"tls.crt": authority.PEM(), "tls.key": key, "ca.crt": []byte("garbage")},
	} {
		client := newSecret(data)
		err := newAuthority(client, false).refresh(t.Context(), time.Now())
		g.Expect(err).To(MatchError(ContainSubstring(want)))
		g.Expect(err.Error()).NotTo(ContainSubstring("PRIVATE KEY"))
		for _, action := range client.Actions() {
			g.Expect(action.GetVerb()).To(Equal("get"), "what cannot be read is left alone")
		}
	}
	err = newAuthority(clientset.NewClientset(), false).refresh(t.Context(), time.Now())
	g.Expect(err).To(MatchError(ContainSubstring("the Secret does not exist: create it without data")))
}

// Run reads the Secret until its context is done, and wakes those who wait for other roots.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		a := newAuthority(newSecret(nil), false)
		_, changed := a.Bundle()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			a.Run(ctx)
		}()
		<-changed
		g.Expect(a.CurrentCABundleContent()).NotTo(BeEmpty())
		cancel()
		<-ended
	})
}
