package credential

import (
	"context"
	"encoding/json"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// secretReflection is the store of the reflector of one Secret. Events after the end of ctx are
// dropped, because another reflector may have replaced this one.
type secretReflection struct {
	*watchedSecret
	ctx context.Context // ends under all.mu, or with the provider
}

var _ toolscache.ReflectorStore = (*secretReflection)(nil)

// Add implements cache.ReflectorStore.
func (w *secretReflection) Add(object any) error { return w.take(object) }

// Update implements cache.ReflectorStore.
func (w *secretReflection) Update(object any) error { return w.take(object) }

// Delete implements cache.ReflectorStore.
func (w *secretReflection) Delete(any) error { w.set(nil); return nil }

// Resync implements cache.ReflectorStore.
func (w *secretReflection) Resync() error { return nil }

// Replace implements cache.ReflectorStore.
func (w *secretReflection) Replace(objects []any, _ string) error {
	for _, object := range objects {
		return w.take(object) // at most one object, because the list selects by name
	}
	w.set(nil)
	return nil
}

// take parses and stores the Secret. take never returns an error, because client-go would log the
// object with the error.
func (w *secretReflection) take(object any) error {
	secret, ok := object.(*corev1.Secret)
	if !ok || secret.Name != w.ref.Name || secret.Namespace != w.ref.Namespace {
		w.recordFailure(errors.New("the API server sent another object than the requested Secret"))
		return nil
	}
	content := &secretContent{}
	if data := secret.Data[w.ref.Key]; len(data) == 0 {
		content.missing = true
	} else {
		content.kubeconfig, content.err = w.parse(data)
	}
	w.set(content)
	return nil
}

// set stores the content of the Secret and wakes the extensions that refer to it.
func (w *secretReflection) set(content *secretContent) {
	w.all.mu.Lock()
	if w.ctx.Err() != nil {
		w.all.mu.Unlock()
		return
	}
	w.read, w.failure, w.content = true, nil, content
	w.wakeUnlock()
}

// recordFailure records that the Secret could not be read. The known content stays.
func (w *secretReflection) recordFailure(err error) {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(err):
		err = operatorForbidden(err, "list and watch on that secret", "a rule "+
			identity.Rule(schema.GroupResource{Resource: "secrets"}, []string{w.ref.Name}, "list", "watch")+" in namespace "+
			w.ref.Namespace)
	case errors.As(err, &status):
		err = invalid(err, "reading the Secret")
	}
	w.all.mu.Lock()
	if w.ctx.Err() != nil {
		w.all.mu.Unlock()
		return
	}
	w.forbidden = w.forbidden || apierrors.IsForbidden(err)
	news := w.failure == nil || w.failure.Error() != err.Error()
	w.failure = err
	if !news || w.read && !apierrors.IsForbidden(err) {
		w.all.mu.Unlock()
		return
	}
	w.wakeUnlock()
}

// trackRequest counts a request as in progress until done is called.
func (w *secretReflection) trackRequest() (done func()) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.requests++
	return func() {
		w.all.mu.Lock()
		defer w.all.mu.Unlock()
		w.requests--
	}
}

// recordWatchStart records that a watch has started.
func (w *secretReflection) recordWatchStart() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	if w.ctx.Err() == nil && w.forbidden {
		w.forbidden = false
		w.all.retryForbiddenLocked(w.watchedSecret)
	}
}

// listerWatcher returns a ListerWatcher for this Secret only.
func (w *secretReflection) listerWatcher(reader rest.Interface) toolscache.ListerWatcher {
	request := func(options metav1.ListOptions) *rest.Request {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, w.ref.Name).String()
		request := reader.Get().Namespace(w.ref.Namespace).Resource("secrets").
			VersionedParams(&options, scheme.ParameterCodec).SetHeader("Accept", "application/json").
			SetHeader("Accept-Encoding", "identity") // what decompresses would take 44 KiB while the watch lasts
		if options.TimeoutSeconds != nil {
			request = request.Timeout(time.Duration(*options.TimeoutSeconds) * time.Second)
		}
		return request
	}
	return &toolscache.ListWatch{
		// The list is read as a stream, because client-go logs the bodies of all other responses.
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if err := w.all.turns.Acquire(ctx, 1); err != nil {
				return nil, err
			}
			defer w.all.turns.Release(1)
			defer w.trackRequest()()
			body, err := request(options).Stream(ctx)
			if err != nil {
				w.recordFailure(err)
				return nil, err
			}
			defer body.Close()
			list := &corev1.SecretList{}
			if err := json.NewDecoder(body).Decode(list); err != nil {
				err = errors.New("the API server's response is not a list of Secrets") // the cause may quote a Secret
				w.recordFailure(err)
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if err := w.all.turns.Acquire(ctx, 1); err != nil {
				return nil, err
			}
			defer w.all.turns.Release(1)
			defer w.trackRequest()()
			options.Watch = true
			watching, err := request(options).Watch(ctx)
			if err != nil {
				w.recordFailure(err)
				if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
					// client-go recognizes these errors, and then waits for up to a minute without
					// checking ctx. A new error without the type avoids this wait.
					err = errors.New(err.Error())
				}
				return nil, err
			}
			w.recordWatchStart()
			return watching, nil
		},
	}
}
