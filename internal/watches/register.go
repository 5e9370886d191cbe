package watches

import (
	"context"
	stderrors "errors"
	"slices"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// register brings the watches of a name in line with what is wanted.
func (r *Registry) register(ctx context.Context, conn Connection, wanted spec) error {
	for {
		reg, err := r.takeTurn(ctx, conn, wanted)
		if err != nil {
			return err
		}
		retry, err := r.registerInTurn(ctx, conn, reg, wanted)
		if !retry {
			return errors.WithMessagef(err, "extension %s, watch %q", keyString(r.Extension), wanted.name)
		}
	}
}

// takeTurn returns the registration of the wanted name, made if need be. Only who has its turn adds
// to it.
func (r *Registry) takeTurn(ctx context.Context, conn Connection, wanted spec) (*registration, error) {
	for {
		r.mu.Lock()
		if err := r.checkLocked(conn); err != nil {
			r.mu.Unlock()
			return nil, err
		}
		reg := r.names[wanted.name]
		if reg == nil {
			reg = newRegistration(r, wanted)
			reg.turn <- struct{}{}
			if r.names == nil {
				r.names = map[string]*registration{}
			}
			r.names[wanted.name] = reg
			r.mu.Unlock()
			return reg, nil
		}
		r.mu.Unlock()
		select {
		case reg.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, errors.Wrapf(context.Cause(ctx), "extension %s, watch %q", keyString(r.Extension), wanted.name)
		}
		if r.isCurrent(reg) {
			return reg, nil
		}
		<-reg.turn // it was ended meanwhile
	}
}

// conflictLocked is ErrConflict, with what is registered, what was asked for, and what to do. The
// registry's mu is held.
func (reg *registration) conflictLocked(wanted spec) error {
	switch {
	case reg.content:
		return errors.WithMessage(ErrConflict, "WatchContent has registered it; Unwatch it first, or take another name")
	case wanted.content:
		return errors.WithMessage(ErrConflict,
			"Watch has registered it, not WatchContent; Unwatch it first, or take another name")
	}
	registered := ""
	for part := range reg.parts { // one, as it is no content
		registered = part.String()
	}
	return errors.WithMessagef(ErrConflict,
		"it watches %s, and %s was asked for; Unwatch it first, take another name, or use WatchContent for kinds and "+
			"namespaces that change",
		registered, wanted.parts[0].part)
}

// registerInTurn ends what is not wanted any more, starts what is not there yet, and gives the
// controller its source if it has none. retry is true if the registration was ended meanwhile.
func (r *Registry) registerInTurn(ctx context.Context, conn Connection, reg *registration, wanted spec) (retry bool,
	err error) {
	failed := true // also by a panic
	defer func() {
		r.mu.Lock()
		var gone []*watch
		if r.names[reg.name] == reg {
			if failed && !reg.started { // nobody will ever hear of it
				for _, w := range reg.parts {
					gone = append(gone, w)
				}
				clear(reg.parts)
			}
			if len(reg.parts) == 0 {
				delete(r.names, reg.name)
			}
		}
		r.mu.Unlock()
		endAll(ctx, gone)
		<-reg.turn
	}()

	r.mu.Lock()
	if reg.content != wanted.content || !wanted.content && len(reg.parts) > 0 && reg.parts[wanted.parts[0].part] == nil {
		err := reg.conflictLocked(wanted)
		r.mu.Unlock()
		failed = false
		return false, err
	}
	var gone []*watch
	if wanted.content {
		for part, w := range reg.parts {
			if !slices.ContainsFunc(wanted.parts, func(p partObject) bool { return p.part == part }) &&
				r.withoutLocked(w, []types.UID{wanted.dependent}) {
				gone = append(gone, w)
			}
		}
	}
	r.mu.Unlock()
	endAll(ctx, gone)

	var problems []error
	var begun []part // in this call
	for _, p := range wanted.parts {
		added, retry, err := r.add(ctx, conn, reg, p, wanted.dependent)
		switch {
		case retry:
			failed = false
			return true, nil
		case err != nil && conn.Err() != nil:
			r.giveUp(ctx, reg, begun, wanted.dependent) // who is not connected has registered nothing
			return false, err
		case err != nil:
			problems = append(problems, err)
		case added:
			begun = append(begun, p.part)
		}
	}
	if !reg.started && len(problems) < len(wanted.parts) {
		if err := wanted.start(inside, reg.ready); err != nil {
			return false, errors.Wrap(err, "adding a source to the controller")
		}
		reg.started = true
	}
	failed = false
	if len(problems) == 1 {
		return false, problems[0]
	}
	return false, stderrors.Join(problems...)
}

// giveUp takes a dependent from parts that it has just begun to need.
func (r *Registry) giveUp(ctx context.Context, reg *registration, begun []part, dependent types.UID) {
	var gone []*watch
	r.mu.Lock()
	for _, part := range begun {
		if w := reg.parts[part]; w != nil && r.withoutLocked(w, []types.UID{dependent}) {
			gone = append(gone, w)
		}
	}
	r.mu.Unlock()
	endAll(ctx, gone)
}

// add makes a part of the registration that is fed from conn, or adds the dependent to the one that
// is there. added tells whether the dependent is new; retry that the registration was ended
// meanwhile.
func (r *Registry) add(ctx context.Context, conn Connection, reg *registration, p partObject,
	dependent types.UID) (added, retry bool, err error) {
	r.mu.Lock()
	if w := reg.parts[p.part]; w != nil {
		before := len(w.dependents)
		w.dependents = withDependent(w.dependents, dependent)
		added = len(w.dependents) > before
		r.mu.Unlock()
		return added, false, nil
	}
	r.mu.Unlock()

	w := newWatch(reg, p, dependent)
	informer, err := conn.Hold(ctx, w.object, w.scope, w.of.name, w.observer(conn))
	if err != nil {
		return false, false, err
	}
	r.mu.Lock()
	err = r.checkLocked(conn)
	if gone := r.names[reg.name] != reg; err != nil || gone {
		r.mu.Unlock()
		w.end() // so that its OnError is not called either
		informer.Release()
		return false, err == nil, err
	}
	reg.parts[p.part] = w // from here on, new connections feed it
	r.mu.Unlock()
	if err := w.attach(conn, informer); err != nil {
		r.mu.Lock()
		if reg.parts[p.part] == w {
			delete(reg.parts, p.part)
		}
		r.mu.Unlock()
		w.end()
		return false, false, err
	}
	return true, false, nil
}

// withDependent returns dependents with one more, sorted and without doubles.
func withDependent(dependents []types.UID, dependent types.UID) []types.UID {
	if at, found := slices.BinarySearch(dependents, dependent); !found {
		return slices.Insert(slices.Clone(dependents), at, dependent)
	}
	return dependents
}

// withoutDependents returns what is left of dependents; none given means all go.
func withoutDependents(dependents, gone []types.UID) []types.UID {
	if len(gone) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(dependents), func(uid types.UID) bool { return slices.Contains(gone, uid) })
}

func keyString(key client.ObjectKey) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}
