package stateapi

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

// certificates are those of servers that follow each other. A server runs its certificates, and
// they notify it: those that read files can run once only, and do not forget a listener. So they
// run here, and notify the server that runs. The methods may be called from any goroutine.
type certificates struct {
	all []dynamiccertificates.Notifier

	mu        sync.Mutex
	listeners map[dynamiccertificates.Listener]struct{} // guarded by mu; of servers that run
}

func newCertificates(options apiserver.ExtensionAPIServerOptions) *certificates {
	c := &certificates{listeners: map[dynamiccertificates.Listener]struct{}{}}
	if options.Certificate != nil {
		c.all = append(c.all, options.Certificate)
	}
	if options.ClientCA != nil {
		c.all = append(c.all, options.ClientCA)
	}
	for _, certificate := range options.SNICertificates {
		c.all = append(c.all, certificate)
	}
	for _, one := range c.all {
		one.AddListener(c)
	}
	return c
}

// run runs the certificates until ctx is done. What cannot be read is read again.
func (c *certificates) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, one := range c.all {
		runner, ok := one.(dynamiccertificates.ControllerRunner)
		if !ok {
			continue
		}
		if err := runner.RunOnce(ctx); err != nil {
			log.FromContext(ctx).Error(err, "Cannot read a certificate of the state API")
		}
		running.Go(func() { runner.Run(ctx, 1) })
	}
}

// Enqueue implements dynamiccertificates.Listener.
func (c *certificates) Enqueue() {
	c.mu.Lock()
	listeners := slices.Collect(maps.Keys(c.listeners))
	c.mu.Unlock()
	for _, listener := range listeners {
		listener.Enqueue()
	}
}

// while returns the options for a server that ends with ctx.
func (c *certificates) while(ctx context.Context,
	options apiserver.ExtensionAPIServerOptions) apiserver.ExtensionAPIServerOptions {
	life := lifetime{c, ctx}
	if options.Certificate != nil {
		options.Certificate = servingCertificate{options.Certificate, life}
	}
	if options.ClientCA != nil {
		options.ClientCA = clientCA{options.ClientCA, life}
	}
	named := options.SNICertificates
	options.SNICertificates = nil
	for _, certificate := range named {
		options.SNICertificates = append(options.SNICertificates, sniCertificate{certificate, life})
	}
	return options
}

// lifetime is that of a server.
type lifetime struct {
	certificates *certificates
	ctx          context.Context //nolint:containedctx // see above
}

func (l lifetime) add(listener dynamiccertificates.Listener) {
	l.certificates.mu.Lock()
	defer l.certificates.mu.Unlock()
	l.certificates.listeners[listener] = struct{}{}
	context.AfterFunc(l.ctx, func() {
		l.certificates.mu.Lock()
		defer l.certificates.mu.Unlock()
		delete(l.certificates.listeners, listener)
	})
}

// What follows has no other methods than the server needs, so that the server does not run it.

type servingCertificate struct {
	dynamiccertificates.CertKeyContentProvider
	lifetime
}

// AddListener implements dynamiccertificates.Notifier.
func (c servingCertificate) AddListener(listener dynamiccertificates.Listener) { c.add(listener) }

type sniCertificate struct {
	dynamiccertificates.SNICertKeyContentProvider
	lifetime
}

// AddListener implements dynamiccertificates.Notifier.
func (c sniCertificate) AddListener(listener dynamiccertificates.Listener) { c.add(listener) }

type clientCA struct {
	dynamiccertificates.CAContentProvider
	lifetime
}

// AddListener implements dynamiccertificates.Notifier.
func (c clientCA) AddListener(listener dynamiccertificates.Listener) { c.add(listener) }
