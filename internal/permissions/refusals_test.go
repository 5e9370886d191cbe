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
	g.Expect(r.IsEmpty()).To(BeTrue())
	g.Expect(r.NoteAnswer(create, 403, forbidden("create", "pods"), start)).To(BeTrue())
	g.Expect(r.NoteAnswer(create, 403, forbidden("create", "pods"), start.Add(time.Minute))).To(BeFalse())
	g.Expect(r.IsEmpty()).To(BeFalse())
	lately := r.Lately(start.Add(time.Minute + RefusedFor - 1))
	g.Expect(lately).To(Equal([]Refused{{create, start, start.Add(time.Minute)}}))
	g.Expect(r.Lately(start.Add(time.Minute + RefusedFor))).To(BeEmpty())

	for status, stays := range map[int]bool{200: false, 201: false, 404: false, 409: false, 422: false, 401: true,
		429: true, 503: true, 302: true, 413: true} {
		r := &Refusals{}
		r.NoteAnswer(create, 403, forbidden("create", "pods"), start)
		r.NoteAnswer(create, status, nil, start)
		g.Expect(r.IsEmpty()).To(Equal(!stays), fmt.Sprint(status))
	}
	g.Expect(r.NoteAnswer(create, 403, []byte("<html>"), start)).To(BeFalse(), "not an API server's")
}

// What was refused beside the request itself is granted with the request.
func TestRefusalsOfOthers(t *testing.T) {
	g := NewWithT(t)
	r := &Refusals{}
	of := func(verb, name string) Permission {
		return Permission{Verb: verb, Group: "rbac.authorization.k8s.io", Resource: "roles", Namespace: "n", Name: name}
	}
	r.Note(of(Escalate, "x"), start)
	r.Note(of("get", "a"), start)
	r.Note(of("get", "b"), start.Add(1))
	r.Note(of("create", ""), start)
	r.Served(of("get", "a"))
	g.Expect(textsOf(r.Lately(start))).To(Equal([]string{
		`get roles.rbac.authorization.k8s.io "b" in namespace n`,
		`create roles.rbac.authorization.k8s.io in namespace n`,
		`escalate roles.rbac.authorization.k8s.io "x" in namespace n`,
	}))
	r.NoteAnswer(of("patch", "x"), 201, nil, start)
	g.Expect(textsOf(r.Lately(start))).To(Equal([]string{`get roles.rbac.authorization.k8s.io "b" in namespace n`}))
	r.Served(of("get", ""))
	g.Expect(r.IsEmpty()).To(BeTrue(), "all names")
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
	g.Expect(lately[0].Namespace).To(Equal("n99"))
	g.Expect(lately[maxRefusals-1].Namespace).To(Equal("n92"))
	r = &Refusals{}
	r.Note(get("n", "a\u202eb"), start)
	r.Note(Permission{Verb: "list", Group: "*", Resource: "*"}, start)
	r.Note(Permission{Verb: "impersonate", Resource: "users"}, start)
	g.Expect(r.IsEmpty()).To(BeTrue())
	var none *Refusals
	none.Note(get("n", "a"), start)
	none.Served(get("n", "a"))
	none.NoteAnswer(get("n", "a"), 403, forbidden("get", "pods"), start)
	g.Expect(none.Lately(start)).To(BeEmpty())
}
