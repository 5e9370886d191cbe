package connection

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
)

// pinnedClient is a client of controller-runtime with what it knows of resources.
type pinnedClient struct {
	client.Client
	pins *pins
}

// pins is a meta.RESTMapper that answers at once for the kinds that were looked up before.
// controller-runtime's clients hold a lock while they ask.
type pins struct {
	meta.RESTMapper
	known sync.Map // from schema.GroupVersionKind to *targets.Resolved
}

// RESTMapping implements meta.RESTMapper.
func (p *pins) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if len(versions) == 1 {
		if known := p.get(gk.WithVersion(versions[0])); known != nil {
			return known.Mapping, nil
		}
	}
	return p.RESTMapper.RESTMapping(gk, versions...)
}

func (p *pins) get(gvk schema.GroupVersionKind) *targets.Resolved {
	if known, ok := p.known.Load(gvk); ok {
		return known.(*targets.Resolved)
	}
	return nil
}

// take notes what was looked up, and reports whether it is the resource that is known.
func (p *pins) take(gvk schema.GroupVersionKind, found *targets.Resolved) bool {
	earlier, known := p.known.LoadOrStore(gvk, found)
	if !known || earlier == found {
		return true
	}
	if !found.Same(earlier.(*targets.Resolved)) {
		return false
	}
	p.known.CompareAndSwap(gvk, earlier, found) // it is as fresh as this
	return true
}
