package watches

import (
	"context"
	stderrors "errors"
	"unique"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// errRegistrationEnded is why a caller that has the turn begins again: the registration ended
// meanwhile.
var errRegistrationEnded = errors.New("the registration ended in the meantime")

// register adds and ends watches of a name until they match wanted.
func (r *Registry) register(ctx context.Context, conn Connection, wanted Spec) error {
	// Before the turn, because it may ask the API server.
	isClusterScoped := func(kind schema.GroupVersionKind) bool { return conn.IsClusterScoped(ctx, kind) }
	for _, p := range wanted.parts {
		if kind := p.part.Value().kind; !wanted.content && p.scope.Namespaces != nil && isClusterScoped(kind) {
			return errors.Errorf("extension %s, watch %q: %s has no namespaces, so a Scope with Namespaces would have an "+
				"informer of all objects for each: leave Namespaces out", connstate.KeyString(r.Extension), wanted.name, kind)
		}
	}
	wanted.parts = mergeClusterScoped(wanted.parts, r.registered(wanted.name), isClusterScoped)
	for {
		reg, err := r.takeTurn(ctx, conn, wanted)
		if err != nil {
			return err
		}
		if err := r.registerInTurn(ctx, conn, reg, wanted); !errors.Is(err, errRegistrationEnded) {
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
			if r.names == nil {
				r.names = map[string]*registration{}
			}
			r.names[wanted.name] = reg
		}
		turn := reg.turn
		if turn == nil {
			reg.turn = make(chan struct{})
			r.mu.Unlock()
			return reg, nil
		}
		r.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
			return nil,
				errors.Wrapf(context.Cause(ctx), "extension %s, watch %q", connstate.KeyString(r.Extension), wanted.name)
		}
	}
}

// registerInTurn makes the watches of the name match wanted, and gives the controller its source if
// it has none. The caller has the turn, which registerInTurn ends.
func (r *Registry) registerInTurn(ctx context.Context, conn Connection, reg *registration, wanted Spec) error {
	defer r.endTurn(ctx, reg)
	plan, err := r.adjust(ctx, reg, wanted)
	if err != nil {
		return err
	}
	added := plan.join // what this call has added for the dependent
	var problems []error
	for _, p := range plan.start {
		switch err := r.start(ctx, conn, reg, p, wanted.dependent); {
		case err == nil:
			added = append(added, p.part)
		case errors.Is(err, errRegistrationEnded):
			return err
		case conn.Err() != nil: // without a connection nothing stays registered
			r.removeDependent(ctx, reg, added, wanted.dependent)
			return err
		default:
			problems = append(problems, err)
		}
	}
	if !reg.started && len(problems) < len(wanted.parts) {
		if err := wanted.start(withHandlerMark, reg.ready); err != nil {
			return errors.Wrap(err, "adding a source to the controller")
		}
		reg.started = true
	}
	if len(problems) == 1 {
		return problems[0]
	}
	return stderrors.Join(problems...)
}

// registered returns the parts of a content, none if there is no content of that name.
func (r *Registry) registered(name string) []unique.Handle[part] {
	r.mu.Lock()
	defer r.mu.Unlock()
	reg := r.names[name]
	if reg == nil || !reg.content {
		return nil
	}
	parts := make([]unique.Handle[part], 0, len(reg.parts))
	for _, w := range reg.parts {
		parts = append(parts, w.part)
	}
	return parts
}

// endTurn ends the turn of a caller. A registration whose controller got no source ends: nothing
// would ever receive its events.
func (r *Registry) endTurn(ctx context.Context, reg *registration) {
	r.mu.Lock()
	close(reg.turn)
	reg.turn = nil
	var gone []*watch
	if r.names[reg.name] == reg {
		if !reg.started {
			gone, reg.parts = reg.parts, nil
		}
		if len(gone) > 0 {
			r.changed()
		}
		if len(reg.parts) == 0 {
			delete(r.names, reg.name)
		}
	}
	r.mu.Unlock()
	endAll(ctx, gone)
}

// adjust plans what the registration needs, and does it for the watches that exist. plan.start is
// left to the caller: only the caller with the turn adds parts.
func (r *Registry) adjust(ctx context.Context, reg *registration, wanted Spec) (plan changes, err error) {
	r.mu.Lock()
	plan, err = planFor(reg.content, reg.parts, wanted)
	var gone []*watch
	if err == nil {
		gone = r.removeDependentLocked(reg, plan.leave, wanted.dependent)
		for _, part := range plan.join {
			w := reg.partLocked(part)
			w.dependents = addDependent(w.dependents, wanted.dependent)
		}
		if len(plan.join) > 0 {
			r.changed()
		}
	}
	r.mu.Unlock()
	endAll(ctx, gone)
	return plan, err
}

// removeDependent removes a dependent from parts of the registration, and ends those that have no
// other one.
func (r *Registry) removeDependent(ctx context.Context, reg *registration, parts []unique.Handle[part],
	dependent types.UID) {
	r.mu.Lock()
	gone := r.removeDependentLocked(reg, parts, dependent)
	r.mu.Unlock()
	endAll(ctx, gone)
}

func (r *Registry) removeDependentLocked(reg *registration, parts []unique.Handle[part],
	dependent types.UID) (gone []*watch) {
	for _, part := range parts {
		if w := reg.partLocked(part); w != nil && r.removeDependentsLocked(w, []types.UID{dependent}) {
			gone = append(gone, w)
		}
	}
	return gone
}

// start creates a part of the registration, which conn feeds. It returns errRegistrationEnded if
// the registration ended meanwhile.
func (r *Registry) start(ctx context.Context, conn Connection, reg *registration, p partObject,
	dependent types.UID) error {
	w := newWatch(reg, p, dependent)
	informer, err := conn.Hold(ctx, w.example(), w.scope, w.reg.name, w.observer(conn))
	if err != nil {
		return err
	}
	r.mu.Lock()
	err = r.checkLocked(conn)
	if err == nil && r.names[reg.name] != reg {
		err = errRegistrationEnded
	}
	if err != nil {
		r.mu.Unlock()
		w.end() // OnError is not called after this
		informer.Release()
		return err
	}
	reg.parts = append(reg.parts, w) // from here on, new connections feed the watch
	r.mu.Unlock()
	if err := w.attach(conn, informer); err != nil {
		r.mu.Lock()
		reg.removeLocked(w)
		r.mu.Unlock()
		w.end()
		return err
	}
	r.changed()
	return nil
}
