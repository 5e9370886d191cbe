package peers

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
)

// Get reads an object at a peer, as it is now. It fails at once for a peer that is not connected.
func (p *Peers) Get(ctx context.Context, identity, resource, namespace, name string, into runtime.Object) error {
	p.mu.Lock()
	known := p.known[identity]
	p.mu.Unlock()
	if known == nil || !known.isHeard(time.Now()) {
		return errors.Errorf("replica %s is not heard", identity)
	}
	client := known.client.Load()
	if client == nil {
		return errors.Errorf("replica %s is not connected", identity)
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).Do(ctx).
		Into(into)
}

// CatchUp waits until the Listener has heard all that a peer had when CatchUp was called. It fails
// when ctx is done, when the peer is not followed any more, and if it does not say within the time
// of Silence what it has.
func (p *Peers) CatchUp(ctx context.Context, identity string) error {
	p.mu.Lock()
	known := p.known[identity]
	p.mu.Unlock()
	if known == nil {
		return errors.Errorf("replica %s is not known", identity)
	}
	client := known.client.Load()
	if client == nil {
		return errors.Errorf("replica %s is not connected", identity)
	}
	for resource := range p.options.Resources {
		version, err := p.newestVersion(ctx, client, resource)
		if err != nil {
			return errors.Wrapf(err, "asking replica %s how far it is", identity)
		}
		if err := known.said.await(ctx, known.ended, resource, version); err != nil {
			return errors.Wrapf(err, "hearing what replica %s had", identity)
		}
	}
	return nil
}

// newestVersion returns the version of the last change of a resource, by a list of nothing.
func (p *Peers) newestVersion(ctx context.Context, client *rest.RESTClient, resource string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.options.Silence)
	defer cancel()
	list, err := client.Get().Resource(resource).
		Param("fieldSelector", fields.OneTermEqualSelector("metadata.name", "-").String()).Do(ctx).Get()
	if err != nil {
		return "", err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
	}
	return accessor.GetResourceVersion(), nil
}

// said has which version of each resource was heard of a peer.
type said struct {
	mu       sync.Mutex
	versions map[string]string // guarded by mu; by resource
	changed  chan struct{}     // guarded by mu; closed when versions changes; nil while none waits
}

func (s *said) set(resource, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.versions == nil {
		s.versions = map[string]string{}
	}
	if s.versions[resource] = version; s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *said) get(resource string) (version string, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.versions[resource], s.changed
}

var errEnded = errors.New("it is not followed any more")

// await waits until a version was heard, or a later one.
func (s *said) await(ctx context.Context, ended <-chan struct{}, resource, version string) error {
	for {
		heard, changed := s.get(resource)
		if heard != "" {
			switch order, err := resourceversion.CompareResourceVersion(heard, version); {
			case err != nil:
				return err
			case order >= 0:
				return nil
			}
		}
		select {
		case <-changed:
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
