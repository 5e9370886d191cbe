package identity

import (
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
)

// ProxyOf returns the proxy by which config reaches its server; nil if config names none.
func ProxyOf(config *rest.Config) *url.URL {
	if config.Proxy == nil {
		return nil
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil
	}
	proxy, err := config.Proxy(&http.Request{URL: server})
	if err != nil {
		return nil
	}
	return proxy
}

// ProxyText returns the address of a proxy without user and password.
func ProxyText(proxy *url.URL) string {
	return (&url.URL{Scheme: proxy.Scheme, Host: proxy.Host}).String()
}
