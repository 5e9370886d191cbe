package connection

import (
	"context"
	"net/http"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

func newCluster(c *Connection) (cluster.Cluster, error) {
	h, err := c.clients()
	if err != nil {
		return nil, err
	}
	created, err := cluster.New(c.RESTConfig(), func(o *cluster.Options) {
		o.Scheme = c.options.Scheme
		o.Logger = c.options.Logger
		o.HTTPClient = c.streams
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return c.mapper, nil }
		o.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return h.Cache, nil }
		o.NewClient = func(*rest.Config, client.Options) (client.Client, error) { return h.Cached, nil }
	})
	if err != nil {
		return nil, errors.Wrap(err, "creating a cluster.Cluster")
	}
	c.tasks.Start(func() { _ = created.Start(c.life) }) // its event recorders end with the connection
	reader, err := newFollowingClient(c, c.streams, nil)
	if err != nil {
		return nil, errors.Wrap(err, "creating the reader of a cluster.Cluster")
	}
	return &boundCluster{Cluster: created, conn: c, reader: struct{ client.Reader }{reader}}, nil
}

// boundCluster is a cluster.Cluster that runs as long as its connection, independent of Start.
type boundCluster struct {
	cluster.Cluster
	conn   *Connection
	reader client.Reader
}

// GetAPIReader returns a reader that follows discovery. That of the cluster.Cluster remembers
// resources.
func (b *boundCluster) GetAPIReader() client.Reader { return b.reader }

// Start waits until ctx or the connection ends. If the connection ends first, Start returns the
// reason.
func (b *boundCluster) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-b.conn.life.Done():
		return b.conn.Err()
	}
}
