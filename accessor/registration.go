package accessor

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// register adds a watch, feeds it, and gives the controller its source.
func (a *identityAccessor) register(ctx context.Context, watcher Watcher) error {
	for {
		s := a.published.Load()
		if s.conn == nil {
			return s.err
		}
		w, existing, added, err := a.reserve(s.conn, watcher)
		if err != nil {
			return err
		}
		if existing == nil {
			return a.registerNew(ctx, s.conn, w, watcher)
		}
		// Somebody else registers, or registered, the same watch.
		select {
		case <-existing.registered:
			if a.depend(existing, watcher.dependent()) {
				return nil
			}
		case <-ctx.Done():
			if added {
				a.independ(existing, watcher.dependent())
			}
			return errors.Wrapf(context.Cause(ctx), "watch %q", watcher.Name())
		}
	}
}

// depend makes sure that the watch is there, with that dependent, and reports whether it is.
func (a *identityAccessor) depend(w *watch, dependent types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.failed != nil || a.watches[w.name] != w {
		return false
	}
	w.dependents = withDependent(w.dependents, dependent)
	return true
}

// independ takes a dependent from a watch that is still being registered. Whoever registers it is left.
func (a *identityAccessor) independ(w *watch, dependent types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.dependents = withoutDependents(w.dependents, []types.UID{dependent})
}

// registerNew attaches a watch that reserve entered. If that fails, or panics, nothing is registered.
func (a *identityAccessor) registerNew(ctx context.Context, conn *connection, w *watch, watcher Watcher) error {
	w.failed = errors.Errorf("watch %q: registering it panicked", w.name)
	defer func() {
		if w.failed != nil {
			a.forget(w)
		}
		close(w.registered)
	}()
	w.failed = a.firstAttach(ctx, conn, w, watcher)
	return w.failed
}

// reserve enters a new watch under its name, or its dependent in the one that is there; added if it was not there.
func (a *identityAccessor) reserve(conn *connection, watcher Watcher) (w, existing *watch, added bool, err error) {
	w, err = newWatch(watcher, a.set.options.Scheme)
	if err != nil {
		return nil, nil, false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.published.Load().conn != conn {
		return nil, nil, false, conn.err() // whatever is not published any more has ended
	}
	existing = a.watches[w.name]
	if existing == nil {
		if a.watches == nil {
			a.watches = map[string]*watch{}
		}
		a.watches[w.name] = w
		return w, nil, true, nil
	}
	if !existing.sameAs(w) {
		return nil, nil, false, errors.Wrapf(ErrWatchConflict, "extension %s, watch %q", KeyString(a.key), w.name)
	}
	before := len(existing.dependents)
	existing.dependents = withDependent(existing.dependents, watcher.dependent())
	return nil, existing, len(existing.dependents) > before, nil
}

func (a *identityAccessor) firstAttach(ctx context.Context, conn *connection, w *watch, watcher Watcher) error {
	h, err := conn.handles()
	if err != nil {
		return err
	}
	informer, err := h.cache.GetScopedInformer(ctx, w.object, w.scope)
	if err != nil {
		return errors.WithMessagef(err, "extension %s, watch %q", KeyString(a.key), w.name)
	}
	if err := w.attach(conn, informer); err != nil {
		return err
	}
	return errors.Wrapf(watcher.start(w.ready), "extension %s, watch %q: adding a source to the controller", KeyString(a.key), w.name)
}

// reattach feeds a watch from a new connection. What fails is tried again as long as the connection lives: the
// kind may be served again.
func (a *identityAccessor) reattach(conn *connection, w *watch) {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 30 * time.Second}
	for conn.err() == nil && w.live() {
		h, err := conn.handles()
		if err == nil {
			informer, informerErr := h.cache.GetScopedInformer(conn.life, w.object, w.scope)
			if err = informerErr; err == nil {
				err = w.attach(conn, informer)
			}
		}
		if err == nil {
			return
		}
		a.set.options.Logger.V(1).Info("Watch not resumed yet", "extension", KeyString(a.key), "watch", w.name, "error", err.Error())
		select {
		case <-conn.life.Done():
		case <-time.After(backoff.Step()):
		}
	}
}

// unregister takes dependents from a watch, all if none are given, and ends it when none is left.
func (a *identityAccessor) unregister(name string, dependents []types.UID) {
	a.mu.Lock()
	w := a.watches[name]
	if w != nil {
		if w.dependents = withoutDependents(w.dependents, dependents); len(w.dependents) > 0 {
			w = nil
		} else {
			delete(a.watches, name)
		}
	}
	a.mu.Unlock()
	if w != nil {
		w.end()
	}
}

func (a *identityAccessor) forget(w *watch) {
	a.mu.Lock()
	if a.watches[w.name] == w {
		delete(a.watches, w.name)
	}
	a.mu.Unlock()
	w.end()
}
