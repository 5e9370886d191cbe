package permissions

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MaxText is how much of an answer NoteAnswer reads.
const MaxText = 16 << 10

// denial matches what an API server's authorizer says; escalation what RBAC says of a role with
// permissions that its writer does not have; and admission what admission says: what the request
// needs was permitted. Another answer with status 403 is no API server's, or not known well enough.
// All begin with the message, so that what a tenant put into a name is no message.
var (
	denial     = regexp.MustCompile(`^(?:[^" ]+ (?:"[^"]*" )?is )?forbidden: User "[^"]*" cannot (\S+) (?:resource|path) `)
	escalation = regexp.MustCompile(`^[a-z]+\.rbac\.authorization\.k8s\.io "([^"]*)" is forbidden: user "[^"]*" ` +
		`\(groups=\[.* is attempting to grant RBAC permissions not currently held`)
	admission = regexp.MustCompile(`^[^" ]+ "[^"]*" is forbidden: |^admission webhook "`)
)

// messageOf returns the message of a metav1.Status in JSON or protobuf, "" if there is none.
func messageOf(text []byte) string {
	if protobuf, ok := bytes.CutPrefix(text, []byte("k8s\x00")); ok {
		var wrapped runtime.Unknown
		status := &metav1.Status{}
		if wrapped.Unmarshal(protobuf) != nil || status.Unmarshal(wrapped.Raw) != nil {
			return ""
		}
		return status.Message
	}
	var status struct {
		Kind    string `json:"kind"`
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &status) != nil || status.Kind != "Status" {
		return ""
	}
	return status.Message
}

// IsProxied reports whether the answer to a request may be that of a server behind the API server.
func (p Permission) IsProxied() bool { return p.Verb == "proxy" || p.Subresource == "proxy" }

// NoteAnswer records what an answer says about the permission that its request needed: that it was
// used, or refused, or nothing. text is the beginning of an answer with status 403, up to MaxText.
// It returns true if something was refused.
func (r *Record) NoteAnswer(needed Permission, status int, text []byte, at time.Time) (refused bool) {
	switch {
	case status == http.StatusForbidden && !needed.IsProxied():
		return r.noteForbidden(needed, messageOf(text), at)
	case isPermitted(&needed, status):
		r.note(&needed, false, at)
		if alsoCreates(&needed, status) {
			needed.Verb = "create"
			r.Note(needed, false, at)
		}
	}
	return false
}

// isPermitted reports whether an answer, of another status than 403 unless it is proxied, shows
// that the authorizer permitted the request.
func isPermitted(needed *Permission, status int) bool {
	switch {
	case needed.IsProxied():
		return status < http.StatusMultipleChoices
	case status == http.StatusUnauthorized, status == http.StatusTooManyRequests,
		status >= http.StatusInternalServerError, status >= http.StatusMultipleChoices && status < http.StatusBadRequest:
		return false
	case status == http.StatusRequestEntityTooLarge, status == http.StatusRequestURITooLong,
		status == http.StatusRequestHeaderFieldsTooLarge: // from before the authorizer
		return false
	}
	return true
}

// alsoCreates reports whether a request that was served has created its object.
func alsoCreates(needed *Permission, status int) bool {
	return status == http.StatusCreated && needed.Subresource == "" && (needed.Verb == "patch" || needed.Verb == "update")
}

// unknownVerb is that of a refusal that is not kept, such as impersonate.
const unknownVerb = "unknown"

// Refusal returns the permission that the text of an answer with status 403 says is missing, as
// verb and name, for a request that needs p. verb is empty if the text is not that of the
// authorizer.
func Refusal(p Permission, text string) (verb, name string) {
	if found := escalation.FindStringSubmatch(text); found != nil && p.Group == rbacv1.GroupName {
		if strings.HasSuffix(p.Resource, "bindings") {
			return Bind, found[1]
		}
		return Escalate, found[1]
	}
	if found := denial.FindStringSubmatch(text); found != nil {
		if slices.Contains(knownVerbs, found[1]) {
			return found[1], p.Name
		}
		return unknownVerb, p.Name
	}
	return "", ""
}

// noteForbidden records an answer with status 403, which is the authorizer's or admission's.
func (r *Record) noteForbidden(needed Permission, text string, at time.Time) (refused bool) {
	verb, name := Refusal(needed, text)
	switch verb {
	case "":
		if admission.MatchString(text) {
			r.Note(needed, false, at)
		}
		return false
	case unknownVerb, needed.Verb:
	case "create", Bind, Escalate: // beside the permission of the request itself
		r.Note(needed, false, at)
	}
	needed.Verb, needed.Name = verb, name
	r.Note(needed, true, at)
	return verb != unknownVerb
}
