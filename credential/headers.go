package credential

import (
	"net/http"
	"slices"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// cloneForIdentity copies a request, without what names a user and without what is for the next
// proxy only (RFC 9110, section 7.6.1): a proxy removes every header that Connection names, also
// one that says whose the request is.
func cloneForIdentity(req *http.Request) *http.Request {
	clone := utilnet.CloneRequest(req)
	stripIdentity(clone.Header)
	stripHopByHop(clone)
	clone.Host = "" // that of the URL
	return clone
}

// headerName is how headers are compared. Some proxies take an underscore for a hyphen.
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
		if name == "sec-websocket-protocol" { // which may offer a token
			header[key] = slices.DeleteFunc(slices.Clone(header[key]), func(value string) bool {
				return strings.Contains(strings.ToLower(value), "base64url.bearer.authorization.k8s.io.")
			})
		}
	}
}

// isHopByHop reports whether a header is for the next proxy only, beside Connection and Upgrade.
func isHopByHop(name string) bool {
	return slices.Contains([]string{"te", "trailer", "keep-alive", "transfer-encoding", "http2-settings"}, name) ||
		strings.HasPrefix(name, "proxy-")
}

// connectionOptions returns what Connection says, in lower case, and which protocols Upgrade
// offers.
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

// hopByHop names what a request has for the next proxy, but for upgrade, close and keep-alive.
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

// stripHopByHop leaves of it one of upgrade, close and keep-alive. req is changed.
func stripHopByHop(req *http.Request) {
	options, upgrades := connectionOptions(req.Header)
	// HTTP/2 without TLS would be a tunnel past whatever looks at requests.
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
