package scopedcache

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// missedFor is how long a read that was refused shows that something is missing.
const missedFor = 10 * time.Minute

// noteMissed records that a read failed because its scope is Forbidden, or its kind is not served.
// A scope that is tried on the way to one that serves the read is not missed.
func (r *reader) noteMissed(ctx context.Context, k *kind, namespace string, err error) {
	if !apierrors.IsForbidden(err) && !meta.IsNoMatchError(err) {
		return
	}
	if namespaced, err := r.namespaced(ctx, k); err == nil && !namespaced {
		namespace = metav1.NamespaceAll
	}
	if len(k.config.namespaces) > 0 {
		if configured, err := r.configuredNamespace(ctx, k, namespace); err == nil {
			namespace = configured
		}
	}
	of := r.unselected(k, namespace)
	if of == nil {
		return
	}
	now := time.Now()
	if before := of.missed.Swap(now.UnixNano()); now.Sub(time.Unix(0, before)) >= missedFor {
		r.user.changed()
	}
}

// isMissed reports whether the user needs what the scope does not have.
func (u *use) isMissed(now ScopeState) bool {
	if now.State == StateSynced || now.State == StateSyncing {
		return false
	}
	if len(now.Dependents) > 0 || time.Since(time.Unix(0, u.missed.Load())) < missedFor {
		return true
	}
	u.entry.entries.mu.Lock()
	defer u.entry.entries.mu.Unlock()
	return u.pinned
}
