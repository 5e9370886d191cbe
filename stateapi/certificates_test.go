package stateapi

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

type listening struct{ f func() }

func (l *listening) Enqueue() { l.f() }

// Files are followed although servers come and go. A server that has ended is not notified, nor
// kept.
func TestCertificatesInTurns(t *testing.T) {
	g := NewWithT(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func() {
		authority, err := certs.NewAuthority("test")
		g.Expect(err).NotTo(HaveOccurred())
		certificate, private, err := authority.Issue(certs.Request{Hosts: []string{"localhost"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(key, private, 0o600)).To(Succeed())
		g.Expect(os.WriteFile(crt, certificate, 0o600)).To(Succeed())
	}
	write()
	serving, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving", crt, key)
	g.Expect(err).NotTo(HaveOccurred())
	named, err := dynamiccertificates.NewDynamicSNIContentFromFiles("named", crt, key, "localhost")
	g.Expect(err).NotTo(HaveOccurred())
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("ca", crt)
	g.Expect(err).NotTo(HaveOccurred())
	options := apiserver.ExtensionAPIServerOptions{
		Certificate:     serving,
		ClientCA:        ca,
		SNICertificates: []dynamiccertificates.SNICertKeyContentProvider{named},
	}
	all := newCertificates(options)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { all.run(ctx) })
	var earlier []*atomic.Int32
	for range 3 {
		life, end := context.WithCancel(ctx)
		turn := all.while(life, options)
		for _, one := range []any{turn.Certificate, turn.ClientCA, turn.SNICertificates[0]} {
			_, runs := one.(dynamiccertificates.ControllerRunner)
			g.Expect(runs).To(BeFalse(), "the server would run it")
		}
		g.Expect(turn.SNICertificates[0].SNINames()).To(Equal([]string{"localhost"}))
		notified := &atomic.Int32{}
		for _, one := range []dynamiccertificates.Notifier{turn.Certificate, turn.ClientCA, turn.SNICertificates[0]} {
			one.AddListener(&listening{func() { notified.Add(1) }})
		}
		before, _ := turn.Certificate.CurrentCertKeyContent()
		bundle := turn.ClientCA.CurrentCABundleContent()
		write()
		g.Eventually(func() []byte {
			now, _ := turn.Certificate.CurrentCertKeyContent()
			return now
		}).WithTimeout(time.Minute).ShouldNot(Equal(before))
		g.Eventually(turn.ClientCA.CurrentCABundleContent).WithTimeout(time.Minute).ShouldNot(Equal(bundle))
		g.Eventually(notified.Load).WithTimeout(time.Minute).ShouldNot(BeZero())
		end()
		g.Eventually(func() int {
			all.mu.Lock()
			defer all.mu.Unlock()
			return len(all.listeners)
		}).WithTimeout(time.Minute).Should(BeZero())
		for _, n := range earlier {
			g.Expect(n.Swap(0)).To(BeZero())
		}
		notified.Store(0)
		earlier = append(earlier, notified)
	}
	cancel()
	running.Wait()
}
