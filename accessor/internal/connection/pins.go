package connection

import (
	"sync"
	"sync/atomic"

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
	count atomic.Int32
}

// maxPins is how many kinds a client knows: as many as a large cluster serves. Kinds come and go,
// and a client lives as long as any connection to its server.
const maxPins = 2000

func (p *pins) full() bool { return p.count.Load() >= maxPins }

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

// put notes what was looked up, of a kind that is not known. No other caller has the pins yet.
func (p *pins) put(gvk schema.GroupVersionKind, found *targets.Resolved) {
	p.known.Store(gvk, found)
	p.count.Add(1)
}

// take notes what was looked up, and reports whether it is the resource that is known. It is not if
// too many others are known.
func (p *pins) take(gvk schema.GroupVersionKind, found *targets.Resolved) bool {
	if p.full() && p.get(gvk) == nil {
		return false
	}
	earlier, known := p.known.LoadOrStore(gvk, found)
	if !known {
		p.count.Add(1)
	}
	if !known || earlier == found {
		return true
	}
	if !found.Same(earlier.(*targets.Resolved)) {
		return false
	}
	p.known.CompareAndSwap(gvk, earlier, found) // it is as fresh as this
	return true
}
