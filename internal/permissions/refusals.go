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
// beginning of an answer with status 403, up to MaxText. It returns true if a permission was
// refused that was not before.
func (r *Refusals) NoteAnswer(needed Permission, status int, text []byte, at time.Time) (isNew bool) {
	switch {
	case status == http.StatusForbidden && !needed.IsProxied():
		message := messageOf(text)
		verb, name := Refusal(needed, message)
		if verb != "" {
			needed.Verb, needed.Name = verb, name
			return r.Note(needed, at)
		}
		if admission.MatchString(message) {
			r.Served(needed)
		}
	case isPermitted(&needed, status):
		r.Served(needed)
		if alsoCreates(&needed, status) {
			needed.Verb = "create"
			r.Served(needed)
		}
	}
	return false
}

// Note records that a permission was refused. It returns false if it was refused already.
func (r *Refusals) Note(p Permission, at time.Time) (isNew bool) {
	p.normalize()
	if r == nil || slices.Index(knownVerbs, p.Verb) < 0 || !keyOf(&p).isPresentable() ||
		p.Name != "" && !untrusted.IsPresentable(p.Name) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = slices.DeleteFunc(r.all, func(one Refused) bool { return at.Sub(one.Last) >= RefusedFor })
	if n := slices.IndexFunc(r.all, func(one Refused) bool { return one.Permission == p }); n >= 0 {
		r.all[n].Last = at
		return false
	}
	if len(r.all) == maxRefusals {
		oldest := 0
		for n := range r.all {
			if r.all[n].Last.Before(r.all[oldest].Last) {
				oldest = n
			}
		}
		r.all = slices.Delete(r.all, oldest, oldest+1)
	}
	r.all = append(r.all, Refused{p.clone(), at, at})
	return true
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
		anyName := p.Name == "" || refused == create || refused >= bind
		return keyOf(&one.Permission) == keyOf(&p) && (anyName || p.Name == one.Name) &&
			(int(refused) == served || verb(served).grants(refused))
	})
}

// Lately returns what was refused less than RefusedFor ago and not granted since, the latest first.
func (r *Refusals) Lately(now time.Time) (lately []Refused) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.all {
		if now.Sub(one.Last) < RefusedFor {
			lately = append(lately, one)
		}
	}
	slices.SortFunc(lately, func(x, y Refused) int {
		return cmp.Or(y.Last.Compare(x.Last), strings.Compare(x.Object(), y.Object()), strings.Compare(x.Verb, y.Verb))
	})
	return lately
}

// IsEmpty reports whether nothing was refused, or is not granted since.
func (r *Refusals) IsEmpty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
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
