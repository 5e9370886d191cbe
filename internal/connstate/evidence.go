package connstate

import (
	"net/http"
	"strings"
)

// Exchange is a request of an identity and the API server's answer, as far as they decide whether
// the API server served the identity.
type Exchange struct {
	Path        string   // of the request's URL
	Accept      []string // the request's header
	Upgrade     bool     // the request asks for another protocol
	Status      int
	ContentType string // of the answer
}

// Serves reports whether the exchange is evidence that the API server served the identity. A status
// alone is none: a proxy or a broken server answers 200 with a page of HTML. Evidence is a 2xx
// whose body is of a media type that the request names, or the 101 of an upgrade that the request
// asked for. A review is never evidence by itself: its answer is judged by what it states.
//
// Serves errs towards "no": an answer that is not recognized costs one probe.
func (x Exchange) Serves() bool {
	switch {
	case IsReview(x.Path):
		return false
	case x.Status == http.StatusSwitchingProtocols:
		return x.Upgrade
	case x.Status < http.StatusOK || x.Status >= http.StatusMultipleChoices:
		return false
	}
	got := mediaType(x.ContentType)
	if got == "" || strings.Contains(got, "*") {
		return false
	}
	named := false
	for _, header := range x.Accept {
		for accepted := range strings.SplitSeq(header, ",") {
			accepted = mediaType(accepted)
			if strings.EqualFold(accepted, got) {
				return true
			}
			named = named || accepted != "" && !strings.Contains(accepted, "*")
		}
	}
	return !named && isKubernetes(got)
}

// mediaType returns a media type without its parameters.
func mediaType(value string) string {
	value, _, _ = strings.Cut(value, ";")
	return strings.TrimSpace(value)
}

// isKubernetes reports whether API servers encode objects in the media type. A request that names
// no media type gets one of these.
func isKubernetes(mediaType string) bool {
	for _, known := range [...]string{"application/json", "application/yaml", "application/cbor",
		"application/vnd.kubernetes.protobuf"} {
		if strings.EqualFold(mediaType, known) {
			return true
		}
	}
	return false
}

// IsReview reports whether a request is an identity or access review.
func IsReview(path string) bool {
	return strings.Contains(path, "/apis/authentication.k8s.io/") || strings.Contains(path, "/apis/authorization.k8s.io/")
}
