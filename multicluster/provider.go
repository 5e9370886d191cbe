package multicluster

import (
	"context"
	stderrors "errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/hostcode"
)

// ErrNotFound is the error of Get for a name that is of no connected extension, unless Options has
// another one.
var ErrNotFound = errors.New("cluster not found")

// Aware is what a Provider engages clusters with: multicluster-runtime's interface of that name.
type Aware[Name ~string] interface {
	Engage(ctx context.Context, name Name, cluster cluster.Cluster) error
}

// Options configure a Provider. The zero value of each field is its default.
type Options[Name ~string] struct {
	// ErrNotFound is in the chain of Get's error for a name that is of no connected extension. Set
	// multicluster-runtime's ErrClusterNotFound. Defaults to ErrNotFound of this package.
	ErrNotFound error
	// Name and Key map the keys of extensions to names of clusters, and back. They must be
	// functions of their argument only, and fast. Key returns false for a string that is no name.
	// Set both or none. The default name is NAMESPACE/NAME, or NAME for cluster-scoped extensions.
	Name func(extension client.ObjectKey) Name
	Key  func(name Name) (client.ObjectKey, bool)
	// FirstRetry is the wait after the first Engage that fails. It doubles up to 60 times as much,
	// and has a fifth of jitter. Defaults to a second.
	FirstRetry time.Duration
}

func (o *Options[Name]) setDefaults() error {
	if (o.Name == nil) != (o.Key == nil) {
		return errors.New("Options.Name and Options.Key must be set together")
	}
	if o.Name == nil {
		o.Name = func(key client.ObjectKey) Name {
			if key.Namespace == "" {
				return Name(key.Name)
			}
			return Name(key.Namespace + string(types.Separator) + key.Name)
		}
		o.Key = func(name Name) (client.ObjectKey, bool) {
			namespace, rest, namespaced := strings.Cut(string(name), string(types.Separator))
			if !namespaced {
				return client.ObjectKey{Name: string(name)}, name != ""
			}
			return client.ObjectKey{Namespace: namespace, Name: rest}, namespace != "" && rest != ""
		}
	}
	if o.ErrNotFound == nil {
		o.ErrNotFound = ErrNotFound
	}
	if o.FirstRetry <= 0 {
		o.FirstRetry = time.Second
	}
	return nil
}

// Provider gives the connected extensions of a ClusterCache as clusters. Its methods may be called
// from any goroutine.
type Provider[Name ~string, A Aware[Name]] struct {
	cache   clustercache.ClusterCache
	options Options[Name]

	mu      sync.Mutex
	started bool                              // guarded by mu
	known   map[client.ObjectKey]*connection  // guarded by mu; the latest one that was seen of each extension
	engaged map[client.ObjectKey]*engagements // guarded by mu; while Start runs
	indexes []index                           // guarded by mu; only appended to
}

// New returns a Provider, or an error if the options are not valid.
func New[Name ~string, A Aware[Name]](cache clustercache.ClusterCache,
	options Options[Name]) (*Provider[Name, A], error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	return &Provider[Name, A]{
		cache:   cache,
		options: options,
		known:   map[client.ObjectKey]*connection{},
		engaged: map[client.ObjectKey]*engagements{},
	}, nil
}

// Get returns the cluster of a connected extension, with all indexes. It does no I/O.
func (p *Provider[Name, A]) Get(ctx context.Context, name Name) (cluster.Cluster, error) {
	key, ok := p.options.Key(name)
	if !ok {
		return nil, errors.WithMessagef(p.options.ErrNotFound, "%q is no name of a cluster", string(name))
	}
	conn, err := p.connection(ctx, key)
	if err != nil {
		return nil, &notFoundError{string(name), p.options.ErrNotFound, err}
	}
	if err := p.index(ctx, key, conn, p.allIndexes()); errors.Is(err, clustercache.ErrNotConnected) {
		return nil, &notFoundError{string(name), p.options.ErrNotFound, err}
	}
	return conn.cluster, nil
}

// notFoundError is the error of Get for an extension that is not connected.
type notFoundError struct {
	name          string
	notFound, err error
}

func (e *notFoundError) Error() string {
	return fmt.Sprintf("cluster %q: %s: %s", e.name, e.notFound, e.err)
}
func (e *notFoundError) Unwrap() []error { return []error{e.notFound, e.err} }

// index is an index of a field.
type index struct {
	object  client.Object
	kind    schema.GroupVersionKind // of objects whose type is that of several kinds
	field   string
	extract client.IndexerFunc
}

func (i *index) equals(other *index) bool {
	return reflect.TypeOf(i.object) == reflect.TypeOf(other.object) && i.kind == other.kind && i.field == other.field
}

// IndexField adds an index to the connections that are and those that come. It does no I/O. A
// second index of a field is an error, and nothing changes. The errors of connections are returned
// together, for example that CacheOptions.Indexes has the index already: the others have it then.
// Those of later connections are logged, and they are engaged without it.
func (p *Provider[Name, A]) IndexField(ctx context.Context, object client.Object, field string,
	extract client.IndexerFunc) error {
	added := index{object: object, field: field, extract: extract}
	switch object.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		added.kind = object.GetObjectKind().GroupVersionKind()
	}
	p.mu.Lock()
	for i := range p.indexes {
		if p.indexes[i].equals(&added) {
			p.mu.Unlock()
			return errors.Errorf("there is an index %q of %T already", field, object)
		}
	}
	p.indexes = append(p.indexes, added)
	all, conns := p.indexes, maps.Clone(p.known)
	p.mu.Unlock()
	var failed []error
	for key, conn := range conns {
		if err := p.index(ctx, key, conn, all); err != nil && !errors.Is(err, clustercache.ErrNotConnected) {
			failed = append(failed, err)
		}
	}
	return stderrors.Join(failed...)
}

// index adds the indexes that a connection does not have yet. What fails is logged, and not tried
// again.
func (p *Provider[Name, A]) index(ctx context.Context, key client.ObjectKey, conn *connection, all []index) error {
	err := conn.index(ctx, all)
	if err != nil && !errors.Is(err, clustercache.ErrNotConnected) {
		err = errors.WithMessagef(err, "cluster %q", string(p.options.Name(key)))
		log.FromContext(ctx).WithName("multicluster").Error(err, "A cluster is without an index")
	}
	return err
}

func (p *Provider[Name, A]) allIndexes() []index {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.indexes
}

// connection is a connection of an extension.
type connection struct {
	cluster cluster.Cluster

	mu      sync.Mutex
	indexed int // guarded by mu; how many of the indexes were added, or failed
}

// index adds the indexes that were not tried yet.
func (c *connection) index(ctx context.Context, all []index) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed []error
	for ; c.indexed < len(all); c.indexed++ {
		i := &all[c.indexed]
		if err := c.cluster.GetFieldIndexer().IndexField(ctx, i.object, i.field, i.extract); err != nil {
			failed = append(failed, errors.WithMessagef(err, "adding the index %q of %T", i.field, i.object))
		}
	}
	return stderrors.Join(failed...)
}

// connection returns the extension's connection. It is looked up under the lock, so that one that
// has ended does not replace the one that followed.
func (p *Provider[Name, A]) connection(ctx context.Context, key client.ObjectKey) (*connection, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connectionLocked(ctx, key)
}

func (p *Provider[Name, A]) connectionLocked(ctx context.Context, key client.ObjectKey) (*connection, error) {
	whole, err := p.cache.GetCluster(ctx, key)
	if err != nil {
		delete(p.known, key)
		return nil, err
	}
	if conn := p.known[key]; conn != nil && conn.cluster == whole {
		return conn, nil
	}
	p.known[key] = &connection{cluster: whole}
	return p.known[key], nil
}

// engagements are what is engaged of an extension: one connection at a time, and the latest in the
// end.
type engagements struct {
	latest  *connection        // that is to be engaged, or is; nil for none
	done    *connection        // for which Engage succeeded
	end     context.CancelFunc // ends the context of the last Engage, or the wait after it; nil before
	running bool               // a goroutine engages
}

// Start engages the extensions that are connected, and those that connect, until ctx is done. Then
// it ends the contexts of all, and waits for the calls of Engage that have not returned. Start may
// be called once.
func (p *Provider[Name, A]) Start(ctx context.Context, aware A) error {
	p.mu.Lock()
	if p.started {
		p.mu.Unlock()
		return errors.New("the provider has been started already")
	}
	p.started = true
	p.mu.Unlock()
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.cache.SubscribeStates(ctx, func(changed []client.ObjectKey) {
		for _, key := range changed {
			if p.changed(ctx, key) {
				running.Go(func() { p.engage(ctx, key, aware) })
			}
		}
	})
	return nil
}

// changed notes the extension's connection, and ends the context of an earlier one. It reports
// whether the caller must engage.
func (p *Provider[Name, A]) changed(ctx context.Context, key client.ObjectKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn, _ := p.connectionLocked(ctx, key)
	e := p.engaged[key]
	switch {
	case e == nil && conn == nil, e != nil && e.latest == conn:
		return false
	case e == nil:
		e = &engagements{}
		p.engaged[key] = e
	}
	if e.end != nil {
		e.end()
		e.end = nil
	}
	e.latest = conn
	if e.running {
		return false // it sees the latest when its call returns
	}
	if conn == nil {
		delete(p.engaged, key)
		return false
	}
	e.running = true
	return true
}

// next returns the connection to engage now, with a context that ends with it. It returns nil if
// there is none; the caller ends then.
func (p *Provider[Name, A]) next(ctx context.Context, key client.ObjectKey) (context.Context, *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.engaged[key]
	if ctx.Err() != nil || e.latest == nil || e.latest == e.done {
		e.running = false
		if e.latest == nil {
			delete(p.engaged, key)
		}
		return nil, nil
	}
	if e.end != nil {
		e.end() // of the wait after a failure
	}
	engaged, end := context.WithCancel(ctx)
	e.end = end
	return engaged, e.latest
}

// failed ends the context of a call of Engage that failed. It returns a context that ends when
// another connection is the latest, and nil if that is so already.
func (p *Provider[Name, A]) failed(ctx context.Context, key client.ObjectKey, conn *connection) context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.engaged[key]
	if e.latest != conn {
		return nil
	}
	e.end()
	waiting, end := context.WithCancel(ctx)
	e.end = end
	return waiting
}

// succeeded notes that Engage has succeeded for the connection.
func (p *Provider[Name, A]) succeeded(key client.ObjectKey, conn *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.engaged[key].done = conn
}

// engage calls Engage for the extension's connection, again after an error, until it has succeeded
// for the latest one.
func (p *Provider[Name, A]) engage(ctx context.Context, key client.ObjectKey, aware A) {
	name := p.options.Name(key)
	logger := log.FromContext(ctx).WithName("multicluster").WithValues("cluster", string(name))
	var last *connection
	retry := p.options.FirstRetry
	for {
		engaged, conn := p.next(ctx, key)
		if conn == nil {
			return
		}
		if conn != last {
			last, retry = conn, p.options.FirstRetry
		}
		err := p.call(engaged, logger, key, conn, aware)
		if err == nil {
			p.succeeded(key, conn)
			continue
		}
		waiting := p.failed(ctx, key, conn)
		if waiting == nil || ctx.Err() != nil {
			continue // the connection, or Start, has ended
		}
		logger.Error(err, "Engage failed, and is called again", "after", retry)
		timer := time.NewTimer(retry + time.Duration(rand.Int64N(int64(retry)/5+1)))
		select {
		case <-timer.C:
		case <-waiting.Done():
		}
		timer.Stop()
		retry = min(2*retry, 60*p.options.FirstRetry)
	}
}

// call adds the indexes to a connection, and calls Engage.
func (p *Provider[Name, A]) call(ctx context.Context, logger logr.Logger, key client.ObjectKey, conn *connection,
	aware A) error {
	if err := p.index(ctx, key, conn, p.allIndexes()); errors.Is(err, clustercache.ErrNotConnected) {
		return err
	}
	host := hostcode.Caller{Logger: func() logr.Logger { return logger }}
	return host.Call("Engage", func() error { return aware.Engage(ctx, p.options.Name(key), conn.cluster) })
}
