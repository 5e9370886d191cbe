package permissions

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func textsOf(refused []Refused) (all []string) {
	for _, one := range refused {
		all = append(all, one.String())
	}
	return all
}

func forbidden(verb, resource string) []byte {
	return fmt.Appendf(nil, `{"kind":"Status","message":"%s is forbidden: User \"u\" cannot %s resource \"%s\""}`, resource,
		verb, resource)
}

// A refusal counts for ten minutes after the last one, or until a request shows that it is granted.
func TestRefusals(t *testing.T) {
	g := NewWithT(t)
	r := &Refusals{}
	create := Permission{Verb: "create", Resource: "pods", Namespace: "n"}
	g.Expect(r.IsEmpty(start)).To(BeTrue())
	r.NoteAnswer(create, 403, forbidden("create", "pods"), start)
	r.NoteAnswer(create, 403, forbidden("create", "pods"), start.Add(time.Minute))
	g.Expect(r.IsEmpty(start)).To(BeFalse())
	lately := r.Lately(start.Add(time.Minute + RefusedFor - 1))
	g.Expect(lately).To(Equal([]Refused{{create, start, start.Add(time.Minute)}}))
	g.Expect(r.Lately(start.Add(time.Minute + RefusedFor))).To(BeEmpty())

	for status, stays := range map[int]bool{200: false, 201: false, 404: false, 409: false, 422: false, 401: true,
		429: true, 503: true, 302: true, 413: true} {
		r := &Refusals{}
		r.NoteAnswer(create, 403, forbidden("create", "pods"), start)
		r.NoteAnswer(create, status, nil, start)
		g.Expect(r.IsEmpty(start)).To(Equal(!stays), fmt.Sprint(status))
	}
	g.Expect(r.IsEmpty(start.Add(time.Hour))).To(BeTrue())
	r.NoteAnswer(create, 403, []byte("<html>"), start)
	g.Expect(r.IsEmpty(start)).To(BeTrue(), "not an API server's")
}

// What was refused beside the request itself is granted with the request.
func TestRefusalsOfOthers(t *testing.T) {
	g := NewWithT(t)
	r := &Refusals{}
	of := func(verb, name string) Permission {
		return Permission{Verb: verb, Group: "rbac.authorization.k8s.io", Resource: "roles", Namespace: "n", Name: name}
	}
	r.Note(of(Escalate, "x"), start)
	r.Note(of(Escalate, "y"), start)
	r.Note(of("get", "a"), start)
	r.Note(of("get", "b"), start.Add(1))
	r.Note(of("create", ""), start)
	r.Served(of("get", "a"))
	const where = ` in namespace n`
	g.Expect(textsOf(r.Lately(start))).To(Equal([]string{
		`create roles.rbac.authorization.k8s.io` + where,
		`escalate roles.rbac.authorization.k8s.io "x"` + where,
		`escalate roles.rbac.authorization.k8s.io "y"` + where,
		`get roles.rbac.authorization.k8s.io "b"` + where,
	}))
	r.NoteAnswer(of("patch", "x"), 201, nil, start)
	g.Expect(textsOf(r.Lately(start))).To(Equal([]string{`escalate roles.rbac.authorization.k8s.io "y"` + where,
		`get roles.rbac.authorization.k8s.io "b"` + where}))
	r.Served(of("get", ""))
	r.Served(of("update", "y"))
	g.Expect(r.IsEmpty(start)).To(BeTrue(), "all names")

	token := of("create", "b")
	token.Group, token.Resource, token.Subresource = "", "serviceaccounts", "token"
	r.Note(token, start)
	other := token
	other.Name = "a"
	r.Served(other)
	g.Expect(r.IsEmpty(start)).To(BeFalse(), "a name restricts the creation of a subresource")
	r.Served(token)

	// A 403 that names another verb shows that the request's own was granted.
	r.Note(of("patch", "x"), start)
	r.NoteAnswer(of("patch", "x"), 403, []byte(`{"kind":"Status","message":"roles.rbac.authorization.k8s.io is forbidden: `+
		`User \"u\" cannot create resource \"roles\""}`), start)
	g.Expect(textsOf(r.Lately(start))).To(Equal([]string{`create roles.rbac.authorization.k8s.io "x"` + where}))
}

// Refusals take little memory, whatever is asked for, and show no names that are none.
func TestRefusalsAreBounded(t *testing.T) {
	g := NewWithT(t)
	r := &Refusals{}
	for n := range 100 {
		r.Note(get(fmt.Sprint("n", n), "a"), start.Add(time.Duration(n)))
	}
	lately := r.Lately(start)
	g.Expect(lately).To(HaveLen(maxRefusals))
	var namespaces []string
	for _, one := range lately {
		namespaces = append(namespaces, one.Namespace)
		g.Expect(one.Since).To(BeTemporally("<", start.Add(maxRefusals)), "since the first ones were refused")
	}
	g.Expect(namespaces).To(ConsistOf("n92", "n93", "n94", "n95", "n96", "n97", "n98", "n99"))
	r = &Refusals{}
	r.Note(get("n", "a\u202eb"), start)
	r.Note(Permission{Verb: "list", Group: "*", Resource: "*"}, start)
	r.Note(Permission{Verb: "impersonate", Resource: "users"}, start)
	r.Note(Permission{Verb: "get", Path: "/readyz"}, start)
	r.Note(Permission{Verb: "create", Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}, start)
	g.Expect(r.IsEmpty(start)).To(BeTrue())
	var none *Refusals
	none.Note(get("n", "a"), start)
	none.Served(get("n", "a"))
	none.NoteAnswer(get("n", "a"), 403, forbidden("get", "pods"), start)
	g.Expect(none.Lately(start)).To(BeEmpty())
}
