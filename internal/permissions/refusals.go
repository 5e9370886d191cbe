package permissions

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

const (
	// RefusedFor is how long a refusal shows that work does not get done. Controllers try again
	// with growing pauses, of up to a quarter of an hour and more, so this is longer than most.
	RefusedFor = 10 * time.Minute
	// maxRefusals is how many permissions Refusals has.
	maxRefusals = 8
)

// Refusals are the permissions that requests of controllers lacked lately, whatever a Record keeps.
// It is bounded: another one takes the place of the oldest. A nil Refusals keeps nothing. Its
// methods may be called from any goroutine.
type Refusals struct {
	mu  sync.Mutex
	all []Refused // guarded by mu
}

// Refused is a permission that was refused to an identity.
type Refused struct {
	Permission
	Since, Last time.Time
}

// NoteAnswer records what an answer says about the permission that its request needed. text is the
// beginning of an answer with status 403, up to MaxText.
func (r *Refusals) NoteAnswer(needed Permission, status int, text []byte, at time.Time) {
	switch {
	case status == http.StatusForbidden && !needed.IsProxied():
		message := messageOf(text)
		verb, name := Refusal(needed, message)
		switch {
		case verb != "":
			if verb != needed.Verb && (verb == "create" || verb == Bind || verb == Escalate) {
				r.Served(needed) // what the request itself needed was granted
			}
			needed.Verb, needed.Name = verb, name
			r.Note(needed, at)
		case admission.MatchString(message):
			r.Served(needed)
		}
	case isPermitted(&needed, status):
		r.Served(needed)
		if alsoCreates(&needed, status) {
			needed.Verb = "create"
			r.Served(needed)
		}
	}
}

// Note records that a permission was refused. What the default roles of Kubernetes give to each
// user is none that a controller asks for: latchkey discovers, and asks for itself.
func (r *Refusals) Note(p Permission, at time.Time) {
	p.normalize()
	if r == nil || slices.Index(knownVerbs, p.Verb) < 0 || isEverybodys(&p) || !keyOf(&p).isPresentable() ||
		p.Name != "" && !untrusted.IsPresentable(p.Name) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pruneLocked(at)
	if n := slices.IndexFunc(r.all, func(one Refused) bool { return one.Permission == p }); n >= 0 {
		r.all[n].Last = at
		return
	}
	added := Refused{p.clone(), at, at}
	if len(r.all) == maxRefusals { // in the place of the oldest, and as if it had been refused as long
		oldest := 0
		for n := range r.all {
			if r.all[n].Last.Before(r.all[oldest].Last) {
				oldest = n
			}
		}
		added.Since = r.all[oldest].Since
		r.all = slices.Delete(r.all, oldest, oldest+1)
	}
	r.all = append(r.all, added)
}

// pruneLocked forgets what was refused too long ago. The caller holds mu.
func (r *Refusals) pruneLocked(now time.Time) {
	r.all = slices.DeleteFunc(r.all, func(one Refused) bool { return now.Sub(one.Last) >= RefusedFor })
}

// clone returns a permission whose strings are its own.
func (p Permission) clone() Permission {
	k := keyOf(&p).own()
	own := k.permission(strings.Clone(p.Verb))
	own.Name = strings.Clone(p.Name)
	return own
}

// Served forgets what a request that was served, or a review, shows to be granted.
func (r *Refusals) Served(p Permission) {
	p.normalize()
	served := slices.Index(knownVerbs, p.Verb)
	if r == nil || served < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = slices.DeleteFunc(r.all, func(one Refused) bool {
		refused := verb(slices.Index(knownVerbs, one.Verb))
		// A name restricts no creation, but that of subresources.
		anyName := p.Name == "" || refused == create && one.Subresource == ""
		return keyOf(&one.Permission) == keyOf(&p) && (anyName || p.Name == one.Name) &&
			(int(refused) == served || verb(served).grants(refused))
	})
}

// Lately returns what was refused less than RefusedFor ago and not granted since, in the order in
// which that began.
func (r *Refusals) Lately(now time.Time) []Refused {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pruneLocked(now)
	lately := slices.Clone(r.all)
	slices.SortFunc(lately, func(x, y Refused) int {
		return cmp.Or(x.Since.Compare(y.Since), strings.Compare(x.String(), y.String()))
	})
	return lately
}

// IsEmpty reports whether nothing was refused lately that is not granted since.
func (r *Refusals) IsEmpty(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pruneLocked(now)
	return len(r.all) == 0
}

// informerKey is the key of a context's value: its requests are those of an informer.
type informerKey struct{}

// ByInformer returns a context for requests of an informer, whose state says what is refused.
func ByInformer(ctx context.Context) context.Context {
	return context.WithValue(ctx, informerKey{}, true)
}

// IsByInformer reports whether a context is one of ByInformer.
func IsByInformer(ctx context.Context) bool { return ctx.Value(informerKey{}) != nil }
