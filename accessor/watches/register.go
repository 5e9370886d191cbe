package watches

import (
	"context"
	stderrors "errors"
	"slices"
	"unique"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// register adds and ends watches of a name until they match wanted.
func (r *Registry) register(ctx context.Context, conn Connection, wanted Spec) error {
	for {
		reg, err := r.takeTurn(ctx, conn, wanted)
		if err != nil {
			return err
		}
		retry, err := r.registerInTurn(ctx, conn, reg, wanted)
		if !retry {
			return errors.WithMessagef(err, "extension %s, watch %q", connstate.KeyString(r.Extension), wanted.name)
		}
	}
}

// takeTurn returns the registration of the wanted name, after it has created the registration if
// necessary. The caller then has the registration's turn: only the caller may add watches.
func (r *Registry) takeTurn(ctx context.Context, conn Connection, wanted Spec) (*registration, error) {
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
			return nil,
				errors.Wrapf(context.Cause(ctx), "extension %s, watch %q", connstate.KeyString(r.Extension), wanted.name)
		}
		if r.isCurrent(reg) {
			return reg, nil
		}
		<-reg.turn // the registration ended in the meantime
	}
}

// conflictLocked returns an ErrConflict that describes the registered watch, the requested watch,
// and a solution. The registry's mu is held.
func (reg *registration) conflictLocked(wanted Spec) error {
	switch {
	case reg.content:
		return errors.WithMessage(ErrConflict, "WatchContent registered the name; call Unwatch first, or use another name")
	case wanted.content:
		return errors.WithMessage(ErrConflict,
			"Watch registered the name, not WatchContent; call Unwatch first, or use another name")
	}
	registered := ""
	for part := range reg.parts { // only one, because this is not a content
		registered = part.Value().String()
	}
	return errors.WithMessagef(ErrConflict,
		"the registered watch is %s, the requested watch is %s; call Unwatch first, use another name, or use "+
			"WatchContent for kinds and namespaces that change",
		registered, wanted.parts[0].part.Value())
}

// registerInTurn ends watches that are not wanted any more, starts missing watches, and gives the
// controller its source if the controller has none. retry is true if the registration ended in the
// meantime.
func (r *Registry) registerInTurn(ctx context.Context, conn Connection, reg *registration, wanted Spec) (retry bool,
	err error) {
	failed := true // stays true on a panic
	defer func() {
		r.mu.Lock()
		var gone []*watch
		if r.names[reg.name] == reg {
			if failed && !reg.started { // no controller will ever receive its events
				for _, w := range reg.parts {
					gone = append(gone, w)
				}
				clear(reg.parts)
				r.changed()
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
				r.removeDependentsLocked(w, []types.UID{wanted.dependent}) {
				gone = append(gone, w)
			}
		}
	}
	r.mu.Unlock()
	endAll(ctx, gone)

	var problems []error
	var newParts []unique.Handle[part] // added by this call
	for _, p := range wanted.parts {
		added, retry, err := r.add(ctx, conn, reg, p, wanted.dependent)
		switch {
		case retry:
			failed = false
			return true, nil
		case err != nil && conn.Err() != nil:
			r.rollBack(ctx, reg, newParts, wanted.dependent) // without a connection nothing stays registered
			return false, err
		case err != nil:
			problems = append(problems, err)
		case added:
			newParts = append(newParts, p.part)
		}
	}
	if !reg.started && len(problems) < len(wanted.parts) {
		if err := wanted.start(withHandlerMark, reg.ready); err != nil {
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

// rollBack removes a dependent from the parts that this call added for it.
func (r *Registry) rollBack(ctx context.Context, reg *registration, newParts []unique.Handle[part],
	dependent types.UID) {
	var gone []*watch
	r.mu.Lock()
	for _, part := range newParts {
		if w := reg.parts[part]; w != nil && r.removeDependentsLocked(w, []types.UID{dependent}) {
			gone = append(gone, w)
		}
	}
	r.mu.Unlock()
	endAll(ctx, gone)
}

// add creates a part of the registration that conn feeds, or adds the dependent to the existing
// part. added reports whether the dependent is new. retry reports whether the registration ended in
// the meantime.
func (r *Registry) add(ctx context.Context, conn Connection, reg *registration, p partObject,
	dependent types.UID) (added, retry bool, err error) {
	r.mu.Lock()
	if w := reg.parts[p.part]; w != nil {
		before := len(w.dependents)
		w.dependents = addDependent(w.dependents, dependent)
		if added = len(w.dependents) > before; added {
			r.changed()
		}
		r.mu.Unlock()
		return added, false, nil
	}
	r.mu.Unlock()

	w := newWatch(reg, p, dependent)
	informer, err := conn.Hold(ctx, w.example(), w.scope, w.reg.name, w.observer(conn))
	if err != nil {
		return false, false, err
	}
	r.mu.Lock()
	err = r.checkLocked(conn)
	if gone := r.names[reg.name] != reg; err != nil || gone {
		r.mu.Unlock()
		w.end() // OnError is not called after this
		informer.Release()
		return false, err == nil, err
	}
	reg.parts[p.part] = w // from here on, new connections feed the watch
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
	r.changed()
	return true, false, nil
}

// addDependent returns dependents with one more, sorted and without duplicates. The argument does
// not change.
func addDependent(dependents []types.UID, dependent types.UID) []types.UID {
	if at, found := slices.BinarySearch(dependents, dependent); !found {
		return slices.Insert(slices.Clone(dependents), at, dependent)
	}
	return dependents
}

// removeDependents returns dependents without those in gone. An empty gone removes all.
func removeDependents(dependents, gone []types.UID) []types.UID {
	if len(gone) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(dependents), func(uid types.UID) bool { return slices.Contains(gone, uid) })
}
