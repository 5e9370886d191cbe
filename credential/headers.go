package credential

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// cloneForIdentity copies a request without the headers that name a user and without hop-by-hop
// headers (RFC 9110, section 7.6.1). Hop-by-hop headers must go because a proxy removes every
// header that Connection names, and Connection could name the header with the identity.
func cloneForIdentity(req *http.Request) *http.Request {
	clone := withoutHeaderTrace(utilnet.CloneRequest(req))
	stripIdentity(clone.Header)
	stripHopByHop(clone)
	clone.Host = "" // the host of the URL is used
	return clone
}

// withoutHeaderTrace returns the request without those hooks of the caller's httptrace that receive
// headers: net/http would call them with the credential, and with what a server quotes before its
// answer.
func withoutHeaderTrace(req *http.Request) *http.Request {
	trace := httptrace.ContextClientTrace(req.Context())
	if trace == nil || trace.WroteHeaderField == nil && trace.Got1xxResponse == nil {
		return req
	}
	return req.WithContext(headersUntraced{req.Context()})
}

type headersUntraced struct{ context.Context }

// Value implements context.Context.
func (c headersUntraced) Value(key any) any {
	value := c.Context.Value(key)
	trace, ok := value.(*httptrace.ClientTrace)
	if !ok || trace == nil {
		return value
	}
	others := *trace
	others.WroteHeaderField, others.Got1xxResponse = nil, nil
	return &others
}

// headerName returns the form of a header name in which this package compares names. Some proxies
// treat an underscore as a hyphen.
func headerName(key string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimSpace(key), "_", "-"))
}

// stripIdentity removes every header that could name a user.
func stripIdentity(header http.Header) {
	for key := range header {
		name := headerName(key)
		if name == "authorization" || name == "cookie" || name == "host" ||
			strings.HasPrefix(name, "impersonate-") || strings.HasPrefix(name, "x-remote-") {
			delete(header, key)
		}
		if name == "sec-websocket-protocol" { // a WebSocket protocol may carry a token
			header[key] = slices.DeleteFunc(slices.Clone(header[key]), func(value string) bool {
				return strings.Contains(strings.ToLower(value), "base64url.bearer.authorization.k8s.io.")
			})
		}
	}
}

// isHopByHop reports whether a header is hop-by-hop. Connection and Upgrade are not included.
func isHopByHop(name string) bool {
	return slices.Contains([]string{"te", "trailer", "keep-alive", "transfer-encoding", "http2-settings"}, name) ||
		strings.HasPrefix(name, "proxy-")
}

// connectionOptions returns the options of Connection and the protocols of Upgrade, in lower case.
func connectionOptions(header http.Header) (options, upgrades []string) {
	for key, values := range header {
		name := headerName(key)
		if name != "connection" && name != "upgrade" {
			continue
		}
		for _, value := range values {
			for option := range strings.SplitSeq(value, ",") {
				switch option = strings.ToLower(strings.TrimSpace(option)); {
				case option == "":
				case name == "connection":
					options = append(options, option)
				default:
					upgrades = append(upgrades, option)
				}
			}
		}
	}
	return options, upgrades
}

// hopByHop returns the names of the hop-by-hop headers and options of a request, except upgrade,
// close and keep-alive.
func hopByHop(req *http.Request) (found []string) {
	options, upgrades := connectionOptions(req.Header)
	for _, option := range options {
		if option != "upgrade" && option != "close" && option != "keep-alive" {
			found = append(found, "Connection: "+untrusted.Quote(option))
		}
	}
	if slices.Contains(upgrades, "h2c") {
		found = append(found, "Upgrade: h2c")
	}
	for key := range req.Header {
		if isHopByHop(headerName(key)) {
			found = append(found, untrusted.Quote(key))
		}
	}
	if len(req.Trailer) > 0 {
		found = append(found, "trailers")
	}
	slices.Sort(found)
	return found
}

// stripHopByHop removes the hop-by-hop headers of req, in place. Of the Connection options only one
// remains: upgrade, close or keep-alive.
func stripHopByHop(req *http.Request) {
	options, upgrades := connectionOptions(req.Header)
	// An upgrade to HTTP/2 without TLS (h2c) would bypass every proxy that inspects requests.
	upgrade := slices.Contains(options, "upgrade") && len(upgrades) > 0 && !slices.Contains(upgrades, "h2c")
	for key := range req.Header {
		name := headerName(key)
		if isHopByHop(name) || name == "connection" || name == "upgrade" && (!upgrade || key != "Upgrade") {
			delete(req.Header, key)
		}
	}
	switch {
	case upgrade && len(req.Header["Upgrade"]) > 0:
		req.Header.Set("Connection", "Upgrade")
	case slices.Contains(options, "close"):
		req.Header.Set("Connection", "close")
	case slices.Contains(options, "keep-alive"):
		req.Header.Set("Connection", "keep-alive")
	}
	req.Trailer, req.TransferEncoding = nil, nil
}
