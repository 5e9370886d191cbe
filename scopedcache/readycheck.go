package scopedcache

import (
	"net/http"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// ReadyCheck returns a readiness check for a manager whose cache is from this package. With such a
// cache a manager starts and stays up although its identity lacks permissions. So the check is
// where a deployment shows the problem. The check fails while any informer of a required kind is
// Syncing, Forbidden or NotServed, in any namespace, and its error says which, and why. An informer
// that is Failing for another reason passes, because an outage must not take all replicas out of
// service. A kind that nothing has read or watched yet, as on a replica that does not lead, passes
// too.
//
//	err := mgr.AddReadyzCheck("permissions", scopedcache.ReadyCheck(mgr.GetCache(), mgr.GetScheme(), &corev1.Secret{}))
//
// The answer to /readyz withholds the errors of checks; that to /readyz/permissions has them. The
// check sends no request.
func ReadyCheck(c cache.Cache, scheme *runtime.Scheme, required ...client.Object) healthz.Checker {
	return func(*http.Request) error {
		scoped, ok := c.(Cache)
		if !ok {
			return errors.Errorf("the manager's cache is a %T: set ctrl.Options.NewCache to scopedcache.New", c)
		}
		states := scoped.States()
		for _, object := range required {
			gvk, err := apiutil.GVKForObject(object, scheme)
			if err != nil {
				return errors.Wrapf(err, "the kind of %T", object)
			}
			for _, scope := range states {
				if scope.GVK.GroupKind() != gvk.GroupKind() {
					continue
				}
				if err := scope.ready(); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// ready returns why the scope cannot be read, nil if it can.
func (s ScopeState) ready() error {
	kind := s.GVK.GroupKind()
	reason := s.LastError
	if reason == nil {
		reason = errors.New(string(s.State))
	}
	switch {
	case s.State == StateLive:
		return nil
	case s.State == StateSyncing:
		return errors.Errorf("waiting for the first list of %s", kind)
	case s.State == StateNotServed:
		return errors.Wrapf(reason, "%s is not served; install its CustomResourceDefinition", kind)
	case s.State == StateForbidden, apierrors.IsForbidden(s.LastError):
		return errors.Wrapf(reason, "cannot list and watch %s; grant this program list and watch on it", kind)
	}
	return nil
}
