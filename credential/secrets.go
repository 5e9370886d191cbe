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

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// secrets watches the Secrets that extensions refer to, each by its name. The watch of a Secret
// runs from the first reference by an extension until the last one ends. Of each Secret, only the
// result of parse for one key is kept.
type secrets struct {
	reader rest.Interface
	parse  func([]byte) (kubeconfig, error)
	counts *metrics.Cache
	turns  *semaphore.Weighted // limits lists, and watches until they have started

	// parsing is locked while parse runs, without I/O. Parsing for all tenants together therefore
	// uses no more memory than parsing for one.
	parsing sync.Mutex

	mu   sync.Mutex
	life context.Context        // guarded by mu; context of the watches; nil before run
	wake func(client.ObjectKey) // guarded by mu; set with life
	// guarded by mu; when retryForbiddenLocked last restarted the forbidden watches
	retried     time.Time
	watches     sync.WaitGroup                      // running watches; Add is called under mu
	byReference map[SecretReference]*watchedSecret  // guarded by mu; only Secrets with users
	byExtension map[client.ObjectKey]*watchedSecret // guarded by mu
}

func newSecrets(reader rest.Interface, parse func([]byte) (kubeconfig, error), counts *metrics.Cache) *secrets {
	return &secrets{
		reader:      reader,
		parse:       parse,
		counts:      counts,
		turns:       semaphore.NewWeighted(readsAtOnce),
		byReference: map[SecretReference]*watchedSecret{},
		byExtension: map[client.ObjectKey]*watchedSecret{},
	}
}

// readsAtOnce is the maximum number of concurrent requests for Secrets: a thousand extensions must
// not open a thousand TCP connections.
const readsAtOnce = 20

// newSecretReader returns a client for Secrets with the host operator's credential.
func newSecretReader(host cluster.Cluster) (rest.Interface, error) {
	config := rest.CopyConfig(host.GetConfig())
	// restarted watches must not delay the host operator's own requests
	config.RateLimiter, config.QPS = nil, -1
	config.ContentConfig = rest.ContentConfig{}
	core, err := corev1client.NewForConfigAndClient(config, host.GetHTTPClient())
	if err != nil {
		return nil, errors.Wrap(err, "preparing to watch Secrets")
	}
	return core.RESTClient(), nil
}

// run starts a watch for each Secret that extensions refer to, now and later, until ctx is done.
// run returns after all watches have ended.
func (s *secrets) run(ctx context.Context, wake func(client.ObjectKey)) {
	s.mu.Lock()
	s.life, s.wake = ctx, wake
	for _, watched := range s.byReference {
		s.startLocked(watched)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.life = nil // no watch starts after this
	s.mu.Unlock()
	s.watches.Wait()
}

// get returns the known content of the Secret ref. From now on the extension refers to this Secret.
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
		return secretContent{}, identity.ErrPending
	case watched.content == nil:
		return secretContent{}, invalid(nil, "the Secret does not exist")
	case watched.content.missing:
		return secretContent{}, invalid(nil, "the Secret does not have this key, or the key is empty")
	case apierrors.IsForbidden(watched.failure):
		return secretContent{err: watched.failure}, nil // the current content is unknown
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

// startLocked starts the watch of a Secret, unless the watch runs already or run is not active.
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

// retryEvery is the shortest interval between two restarts of all forbidden watches. Each watch
// also has its own backoff.
const retryEvery = 2 * time.Second

// retryForbiddenLocked restarts the other watches that were forbidden, after a watch was granted.
// The same grant usually covers the other Secrets too, and the backoff of each watch is up to half
// a minute. Watches with a request in progress are not restarted.
func (s *secrets) retryForbiddenLocked(granted *watchedSecret) {
	if s.life == nil || time.Since(s.retried) < retryEvery {
		return
	}
	s.retried = time.Now()
	for _, other := range s.byReference {
		if other != granted && other.stop != nil && other.forbidden && other.requests == 0 {
			other.stop()
			other.stop = nil
			s.startLocked(other)
		}
	}
}

// secretContent is the content of a Secret.
type secretContent struct {
	missing    bool // the Secret does not have the key
	kubeconfig kubeconfig
	err        error // why the kubeconfig cannot be used
}

// watchedSecret is a Secret that extensions refer to.
type watchedSecret struct {
	ref SecretReference
	all *secrets

	// all.mu guards the following fields.
	users   map[client.ObjectKey]struct{}
	stop    context.CancelFunc // nil until the watch starts
	read    bool               // the Secret was read at least once
	failure error              // of the last attempt to read it, nil if it succeeded
	// a request got a 403, and no watch has started since; a successful list is not sufficient
	forbidden bool
	requests  int            // in progress: lists, and watches until they have started
	content   *secretContent // nil if the Secret does not exist
}

// parse parses data, and returns an error if the parser panics: a tenant controls the data.
func (w *watchedSecret) parse(data []byte) (parsed kubeconfig, err error) {
	defer func() {
		if recover() != nil {
			w.all.counts.HandlerPanicked()
			parsed, err = kubeconfig{}, invalid(nil, "the content cannot be parsed as a kubeconfig")
		}
	}()
	w.all.parsing.Lock()
	defer w.all.parsing.Unlock()
	return w.all.parse(data)
}

// wakeUnlock unlocks all.mu and wakes the users.
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
