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
		r.noteForbidden(needed, text, at)
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

// noteForbidden records an answer with status 403, which is the authorizer's or admission's.
func (r *Record) noteForbidden(needed Permission, text []byte, at time.Time) {
	denied := denial.FindSubmatch(text)
	escalates := escalation.FindSubmatch(text)
	if escalates != nil && needed.Group == rbacv1.GroupName {
		r.Note(needed, false, at)
		needed.Name, needed.Verb = string(escalates[1]), Escalate
		if strings.HasSuffix(needed.Resource, "bindings") {
			needed.Verb = Bind
		}
		r.Note(needed, true, at)
		return
	}
	if denied == nil {
		if len(text) < MaxText && admission.Match(text) {
			r.Note(needed, false, at)
		}
		return
	}
	// An apply or an update that creates needs two permissions, and the answer has the one that is
	// missing. That of constrained impersonation is missing to who impersonates.
	if verb := string(denied[1]); verb != needed.Verb {
		if verb == "create" {
			r.Note(needed, false, at)
		}
		needed.Verb = verb
	}
	r.Note(needed, true, at)
}
