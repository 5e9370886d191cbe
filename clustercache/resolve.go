package clustercache

import (
	"context"
	"strings"
	"unicode"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/hostcode"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// What the host operator's functions are called in errors.
const (
	inFilter        = "Options.Filter"
	inAllowIdentity = "Options.AllowIdentity"
	inCredentials   = "Options.Credentials"
	inReference     = "a function in Options.Credentials"
)

// call calls a function of the host operator about an extension.
func call(ctx context.Context, counts *metrics.Cache, what string, extension client.Object, f func() error) error {
	caller := hostcode.Caller{
		Metrics: counts,
		Logger: func() logr.Logger {
			return ctrl.LoggerFrom(ctx).WithValues("extension", klog.KObj(extension))
		},
	}
	return caller.Call(what, f)
}

// isWanted calls Options.Filter. A panic counts as no: a tenant whose object makes Filter panic
// must not keep a connection that it should lose.
func (r *reconciler) isWanted(ctx context.Context, object client.Object) (wanted bool, err error) {
	err = call(ctx, r.metrics, inFilter, object, func() error {
		wanted = r.matches(object)
		return nil
	})
	return wanted, err
}

// resolve calls Options.AllowIdentity and Options.Credentials. A panic allows and provides nothing.
// An extension that is not resolved leaves no data with the credentials.
func (r *reconciler) resolve(ctx context.Context, object client.Object) (identity.Resolution, error) {
	guarded, resolution, err := r.guard(ctx, object)
	if err != nil {
		r.resolver.Forget(client.ObjectKeyFromObject(object))
		return resolution, err
	}
	err = call(ctx, r.metrics, inCredentials, object, func() (err error) {
		resolution, err = r.resolver.Resolve(ctx, object)
		return err
	})
	switch {
	case hostcode.IsPanic(err):
		r.references.set(client.ObjectKeyFromObject(object), types.NamespacedName{})
		err = errors.Wrap(credential.ErrInvalidCredential, err.Error())
	case err == nil && resolution.ServiceAccount != guarded:
		err = notAllowedError{errors.Errorf(
			"the functions in Options.Credentials must depend on the object only: they named serviceaccount %s, then %s",
			guarded, resolution.ServiceAccount)}
	default:
		return resolution, err
	}
	r.resolver.Forget(client.ObjectKeyFromObject(object))
	return identity.Resolution{}, err
}

// guard returns the ServiceAccount that the object names and Options.AllowIdentity allows, none if
// the object has another kind of credential: with Choose, such a credential has its own guard. If
// guard returns an error, the resolution is what the state shows.
func (r *reconciler) guard(ctx context.Context, object client.Object) (guarded types.NamespacedName,
	refused identity.Resolution, err error) {
	if !r.resolver.UsesServiceAccounts() {
		return guarded, refused, nil
	}
	key := client.ObjectKeyFromObject(object)
	var named types.NamespacedName
	err = call(ctx, r.metrics, inReference, object, func() (err error) {
		named, err = r.resolver.ServiceAccount(object)
		return err
	})
	if err != nil {
		r.references.set(key, types.NamespacedName{})
		if hostcode.IsPanic(err) {
			return guarded, refused, errors.Wrap(credential.ErrInvalidReference, err.Error())
		}
		return guarded, identity.Resolution{Source: sourceIfPrintable(named)}, err
	}
	r.references.set(key, named) // before the ServiceAccount is read, see references
	if named == (types.NamespacedName{}) {
		return guarded, refused, nil
	}
	err = call(ctx, r.metrics, inAllowIdentity, object, func() error { return r.allow(ctx, object, named) })
	switch {
	case hostcode.IsPanic(err):
		r.references.set(key, types.NamespacedName{})
		return guarded, refused, notAllowedError{err}
	case err != nil:
		source := "serviceaccount " + named.String()
		return guarded, identity.Resolution{
				ServiceAccount: named,
				Source:         source,
				Reference:      identity.Reference{Name: source},
			},
			notAllowedError{errors.WithMessagef(err, "acting as serviceaccount %s", named)}
	}
	return named, refused, nil
}

// notAllowedError marks the verdict of AllowIdentity, whose text is shown without an addition.
type notAllowedError struct{ error }

func (e notAllowedError) Unwrap() error        { return e.error }
func (e notAllowedError) Is(target error) bool { return target == credential.ErrNotAllowed }

// sourceIfPrintable returns the source of a ServiceAccount that an extension names, although it may
// be none that can exist. Tenants write the name, so other texts are not shown.
func sourceIfPrintable(serviceAccount types.NamespacedName) string {
	text := serviceAccount.String()
	if serviceAccount.Namespace == "" || serviceAccount.Name == "" || text != untrusted.Shorten(text) ||
		strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }) {
		return ""
	}
	return "serviceaccount " + text
}
