package permissioncheck

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// Check is what is asked.
type Check struct {
	Objects []client.Object
	Verbs   []string
	// DryRun also applies the objects with dry run, as this field owner.
	DryRun     bool
	FieldOwner string
}

// Answer is what the API server says.
type Answer struct {
	Allowed   []permissions.Permission
	Missing   []Missing  // denied
	Undecided []Missing  // neither
	NotFound  []NotFound // so that nothing more can be known of some objects
	Failed    []Failed   // by the dry run, for another reason than permissions
}

// Missing is a permission, and what the API server says of it.
type Missing struct {
	permissions.Permission
	Reason string
	// For are the objects that need it, by their index in Check.Objects.
	For []int
}

// NotFound is a kind that is not served, a namespace, or a role that a binding names. Created says
// that an object of the content makes it.
type NotFound struct {
	Kind      schema.GroupVersionKind // of what is not found
	Namespace string
	Name      string
	Created   bool
	For       []int
}

// Failed is an object that the API server would refuse.
type Failed struct {
	Object int
	Err    error
}

// Checker asks an API server as an identity. Its methods may be called from any goroutine.
type Checker struct {
	reviewer *reviewer
	client   client.Client
}

// New returns a Checker. c reads from the API server, and review sends an access review, both as
// the identity.
func New(c client.Client, review Review) *Checker {
	return &Checker{reviewer: &reviewer{review: review}, client: c}
}

// Allowed returns which of the permissions the identity has, by fresh answers. It ends with the
// first question that is not answered.
func (c *Checker) Allowed(ctx context.Context, asked []permissions.Permission) (all []permissions.Permission) {
	begin := time.Now()
	c.reviewer.forget()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	answers := make([]answered, len(asked))
	for i, p := range asked {
		group.Go(func() (err error) {
			if err := ctx.Err(); err != nil {
				return err
			}
			answers[i], err = c.reviewer.since(ctx, requested(p), begin)
			return err
		})
	}
	_ = group.Wait() // the zero value is a denial
	for i, p := range asked {
		if answers[i].verdict == allowed {
			all = append(all, p)
		}
	}
	return all
}

// Run answers a check. An error says why there is no answer.
func (c *Checker) Run(ctx context.Context, check Check) (*Answer, error) {
	r := &run{Checker: c, check: check, answer: &Answer{}}
	if err := r.read(); err != nil {
		return nil, err
	}
	questions := &questions{}
	for i := range r.objects {
		r.askFor(&r.objects[i], questions)
	}
	if err := c.reviewer.ask(ctx, questions); err != nil {
		return nil, err
	}
	if err := r.escalations(ctx); err != nil {
		return nil, err
	}
	if err := r.namespaces(ctx); err != nil {
		return nil, err
	}
	if err := r.settle(ctx, questions); err != nil {
		return nil, err
	}
	if check.DryRun {
		if err := r.dryRun(ctx); err != nil {
			return nil, err
		}
	}
	return r.answer, nil
}

// run is one check.
type run struct {
	*Checker
	check   Check
	objects []object
	content contents
	answer  *Answer
}

// has reports whether one of the verbs is asked about.
func (r *run) has(verbs ...string) bool {
	return slices.ContainsFunc(verbs, func(verb string) bool { return slices.Contains(r.check.Verbs, verb) })
}

// askFor asks for the permissions on an object.
func (r *run) askFor(o *object, q *questions) {
	if o.unserved {
		return
	}
	for _, verb := range r.check.Verbs {
		p := permissions.Permission{
			Verb:      verb,
			Group:     o.resource.Group,
			Resource:  o.resource.Resource,
			Namespace: o.GetNamespace(),
			Name:      o.GetName(),
		}
		switch verb {
		case "list", "watch", "deletecollection":
			p.Name = ""
		case "create": // by an apply or an update it has a name
			if !r.has("patch", "update") {
				p.Name = ""
			}
		}
		q.add(requested(p), o.index)
	}
}

// requested returns the permission as the API server asks for it: a request about one Namespace is
// in that namespace, except that an apply creates it in none.
func requested(p permissions.Permission) permissions.Permission {
	if p.Group == "" && p.Resource == "namespaces" && p.Name != "" && p.Verb != "create" {
		p.Namespace = p.Name
	}
	return p
}

// settle takes over the answers. Permission to create is not missing for an object that exists.
func (r *run) settle(ctx context.Context, q *questions) error {
	for _, one := range q.all {
		if one.verdict == allowed {
			r.answer.Allowed = append(r.answer.Allowed, one.Permission.Normal())
			continue
		}
		missing := Missing{Permission: one.Permission.Normal(), Reason: one.reason, For: one.objects}
		if one.verdict == undecided {
			r.answer.Undecided = append(r.answer.Undecided, missing)
			continue
		}
		if one.Verb == "create" && one.Name != "" {
			exists, err := r.exists(ctx, one, q)
			if err != nil {
				return err
			}
			if exists {
				continue
			}
		}
		r.answer.Missing = append(r.answer.Missing, missing)
	}
	return nil
}

// exists reports whether the object of a question is there, as far as the identity may get it.
func (r *run) exists(ctx context.Context, one *question, q *questions) (bool, error) {
	o := &r.objects[one.objects[0]]
	if o.unserved || o.pending {
		return false, nil
	}
	get := one.Permission
	get.Verb = "get"
	asked, err := r.reviewer.one(ctx, requested(get))
	if err != nil || asked.verdict != allowed {
		return false, err
	}
	return r.get(ctx, o.kind, client.ObjectKeyFromObject(o))
}

// get reports whether an object is there.
func (r *run) get(ctx context.Context, kind schema.GroupVersionKind, key client.ObjectKey) (bool, error) {
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(kind)
	err := r.client.Get(ctx, key, found)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err), apierrors.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, errors.Wrapf(err, "looking for %s %s", kind.Kind, key)
	}
	return true, nil
}

// namespaces notes the namespaces that do not exist, as far as the identity may get them.
func (r *run) namespaces(ctx context.Context) error {
	in := map[string][]int{}
	for _, o := range r.objects {
		if o.GetNamespace() != "" {
			in[o.GetNamespace()] = append(in[o.GetNamespace()], o.index)
		}
	}
	for _, o := range r.objects {
		if o.isNamespace() {
			in[o.GetName()] = append(in[o.GetName()], o.index)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		objects := in[name]
		p := permissions.Permission{Verb: "get", Resource: "namespaces", Name: name, Namespace: name}
		asked, err := r.reviewer.one(ctx, p)
		if err != nil {
			return err
		}
		if asked.verdict != allowed {
			continue // it may exist
		}
		kind := schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
		exists, err := r.get(ctx, kind, client.ObjectKey{Name: name})
		if err != nil {
			return err
		}
		objects = slices.DeleteFunc(objects, func(i int) bool { return r.objects[i].isNamespace() })
		if exists || len(objects) == 0 {
			continue
		}
		for _, i := range objects {
			r.objects[i].pending = true
		}
		r.answer.NotFound = append(r.answer.NotFound, NotFound{
			Kind:    kind,
			Name:    name,
			Created: r.content.namespaces[name],
			For:     objects,
		})
	}
	return nil
}
