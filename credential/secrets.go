package credential

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// secrets watches the Secrets that extensions refer to, each by its name, from when the first
// extension refers to it until the last one does not any more. Of a Secret it keeps what parse made
// of one key.
type secrets struct {
	reader rest.Interface
	parse  func([]byte) (kubeconfig, error)
	turns  *semaphore.Weighted // of lists, and of watches until they have begun

	parsing sync.Mutex // held while parse runs, so that tenants together cost no more memory than one; no I/O is done

	mu   sync.Mutex
	life context.Context        // guarded by mu; of the watches; nil before run
	wake func(client.ObjectKey) // guarded by mu; set with life
	// guarded by mu; when those that may not be read last were, all at once
	retried     time.Time
	watches     sync.WaitGroup                      // under way; added to under mu
	byReference map[SecretReference]*watchedSecret  // guarded by mu; holds exactly what has users
	byExtension map[client.ObjectKey]*watchedSecret // guarded by mu
}

func newSecrets(reader rest.Interface, parse func([]byte) (kubeconfig, error)) *secrets {
	return &secrets{reader: reader, parse: parse, turns: semaphore.NewWeighted(readsAtOnce),
		byReference: map[SecretReference]*watchedSecret{}, byExtension: map[client.ObjectKey]*watchedSecret{}}
}

// readsAtOnce is how many Secrets are asked for at the same time: a thousand extensions must not
// open as many TCP connections.
const readsAtOnce = 20

// newSecretReader makes a client for Secrets, as the host operator.
func newSecretReader(host cluster.Cluster) (rest.Interface, error) {
	config := rest.CopyConfig(host.GetConfig())
	// watches that come back must not queue the host operator's own requests behind them
	config.RateLimiter, config.QPS = nil, -1
	config.ContentConfig = rest.ContentConfig{}
	core, err := corev1client.NewForConfigAndClient(config, host.GetHTTPClient())
	if err != nil {
		return nil, errors.Wrap(err, "preparing to watch Secrets")
	}
	return core.RESTClient(), nil
}

// run starts watches for what is referred to, now and later, until ctx is done. It returns when
// they have ended.
func (s *secrets) run(ctx context.Context, wake func(client.ObjectKey)) {
	s.mu.Lock()
	s.life, s.wake = ctx, wake
	for _, watched := range s.byReference {
		s.startLocked(watched)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.life = nil // nothing starts any more
	s.mu.Unlock()
	s.watches.Wait()
}

// get returns what is known of the Secret that the extension refers to from now on.
func (s *secrets) get(extension client.ObjectKey, ref SecretReference) (secretContent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	watched := s.byExtension[extension]
	if watched == nil || watched.ref != ref {
		s.forgetLocked(extension)
		if watched = s.byReference[ref]; watched == nil {
			watched = &watchedSecret{ref: ref, all: s, users: map[client.ObjectKey]struct{}{}}
			s.byReference[ref] = watched
			s.startLocked(watched)
		}
		watched.users[extension] = struct{}{}
		s.byExtension[extension] = watched
	}
	switch {
	case watched.failure != nil && !watched.read:
		return secretContent{}, watched.failure
	case !watched.read:
		return secretContent{}, ErrPending
	case watched.content == nil:
		return secretContent{}, invalid(nil, "it does not exist")
	case watched.content.missing:
		return secretContent{}, invalid(nil, "it has no such key, or an empty one")
	case apierrors.IsForbidden(watched.failure):
		return secretContent{err: watched.failure}, nil // what it holds by now is not known
	}
	return *watched.content, nil
}

// forget ends the extension's reference.
func (s *secrets) forget(extension client.ObjectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(extension)
}

func (s *secrets) forgetLocked(extension client.ObjectKey) {
	watched := s.byExtension[extension]
	if watched == nil {
		return
	}
	delete(s.byExtension, extension)
	delete(watched.users, extension)
	if len(watched.users) == 0 {
		delete(s.byReference, watched.ref)
		if watched.stop != nil {
			watched.stop()
		}
	}
}

// startLocked watches a Secret, if it is time for that.
func (s *secrets) startLocked(watched *watchedSecret) {
	if s.life == nil || watched.stop != nil {
		return
	}
	var ctx context.Context
	ctx, watched.stop = context.WithCancel(s.life)
	read := &secretReflection{watchedSecret: watched, ctx: ctx}
	reflector := toolscache.NewReflectorWithOptions(read.listerWatcher(s.reader), &corev1.Secret{}, read,
		toolscache.ReflectorOptions{
			Name: "kubeconfig secrets",
		})
	s.watches.Go(func() { reflector.RunWithContext(ctx) })
}

// retryEvery is the shortest time between two reads of all Secrets that may not be read, beside
// their own backoff.
const retryEvery = 2 * time.Second

// retryForbiddenLocked reads the others that the host operator might not read anew, now that it may
// watch one: what granted that will mostly have granted the others too, and the backoff of each of
// them is up to half a minute. Those that are being asked for are left alone.
func (s *secrets) retryForbiddenLocked(granted *watchedSecret) {
	if s.life == nil || time.Since(s.retried) < retryEvery {
		return
	}
	s.retried = time.Now()
	for _, other := range s.byReference {
		if other != granted && other.stop != nil && other.refused && other.requests == 0 {
			other.stop()
			other.stop = nil
			s.startLocked(other)
		}
	}
}

// secretContent is what a Secret holds.
type secretContent struct {
	missing    bool // there is no such key
	kubeconfig kubeconfig
	err        error // why it cannot be used
}

// watchedSecret is a Secret that extensions refer to.
type watchedSecret struct {
	ref SecretReference
	all *secrets

	// All of these are guarded by all.mu.
	users    map[client.ObjectKey]struct{}
	stop     context.CancelFunc // nil before it is watched
	read     bool               // at least once
	failure  error              // of the last attempt to read it, nil if it succeeded
	refused  bool               // a request was answered 403, and no watch has begun since: a list alone is no permission
	requests int                // lists, and watches until they have begun, under way
	content  *secretContent     // nil if it does not exist
}

// parse survives what a tenant may find to make a parser panic.
func (w *watchedSecret) parse(data []byte) (parsed kubeconfig, err error) {
	defer func() {
		if recover() != nil {
			metrics.HandlerPanics.Inc()
			parsed, err = kubeconfig{}, invalid(nil, "it cannot be parsed as a kubeconfig")
		}
	}()
	w.all.parsing.Lock()
	defer w.all.parsing.Unlock()
	return w.all.parse(data)
}

// wakeUnlock releases the lock and wakes the users.
func (w *watchedSecret) wakeUnlock() {
	users := make([]client.ObjectKey, 0, len(w.users))
	for user := range w.users {
		users = append(users, user)
	}
	wake := w.all.wake
	w.all.mu.Unlock()
	for _, user := range users {
		wake(user)
	}
}
