package permissions

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
)

// MaxText is how much of an answer NoteAnswer reads.
const MaxText = 2048

// denial matches what an API server's authorizer says, in any encoding; escalation what RBAC says
// of a role with permissions that its writer does not have; and admission what admission says: what
// the request needs was permitted. Another answer with that status is no API server's, or not known
// well enough.
var (
	escalation = regexp.MustCompile(`\.rbac\.authorization\.k8s\.io \\?"([^"\\]*)\\?" is forbidden: user \\?"[^"]*" ` +
		`\(groups=.* is attempting to grant RBAC permissions not currently held`)
	denial    = regexp.MustCompile(`User \\?"[^"]*" cannot (\S+) (?:resource|path) `)
	admission = regexp.MustCompile(` is forbidden: |admission webhook \\?"`)
)

// IsProxied reports whether the answer to a request may be that of a server behind the API server.
func (p Permission) IsProxied() bool { return p.Verb == "proxy" || p.Subresource == "proxy" }

// NoteAnswer records what an answer says about the permission that its request needed: that it was
// used, or refused, or nothing. text is the beginning of an answer with status 403, up to MaxText.
func (r *Record) NoteAnswer(needed Permission, status int, text []byte, at time.Time) {
	switch {
	case needed.IsProxied():
		if status < http.StatusMultipleChoices {
			r.Note(needed, false, at)
		}
	case status == http.StatusForbidden:
		r.noteForbidden(needed, string(text), at)
	case status == http.StatusUnauthorized, status == http.StatusTooManyRequests,
		status >= http.StatusInternalServerError, status >= http.StatusMultipleChoices && status < http.StatusBadRequest:
	default:
		r.Note(needed, false, at)
		creates := needed.Verb == "patch" || needed.Verb == "update"
		if creates && needed.Subresource == "" && status == http.StatusCreated {
			needed.Verb = "create"
			r.Note(needed, false, at)
		}
	}
}

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
		return found[1], p.Name
	}
	return "", ""
}

// noteForbidden records an answer with status 403, which is the authorizer's or admission's.
func (r *Record) noteForbidden(needed Permission, text string, at time.Time) {
	verb, name := Refusal(needed, text)
	switch verb {
	case "":
		if len(text) < MaxText && admission.MatchString(text) {
			r.Note(needed, false, at)
		}
		return
	case needed.Verb:
	case "create", Bind, Escalate: // beside the permission of the request itself
		r.Note(needed, false, at)
	}
	needed.Verb, needed.Name = verb, name
	r.Note(needed, true, at)
}
