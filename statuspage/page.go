package statuspage

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"path"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// Options are the options of a Page. Zero values mean the defaults.
type Options struct {
	// Name is the heading of the page. Defaults to "latchkey".
	Name string
	// Replicas, if set, are what the page shows instead of the ClusterCache alone: the extensions of
	// all replicas of a fleet. StateAPI.Replicas of package stateapi returns them.
	Replicas Replicas
}

// Page shows the connections of a ClusterCache. A Page is an http.Handler, and a Runnable to add to
// the manager, without which it shows nothing. Its methods may be called from any goroutine.
type Page struct {
	name     string
	source   source
	replicas Replicas // nil if the source is this process alone
	fleet    *fleet
	viewers  chan struct{} // holds a token for each stream
	ended    chan struct{} // closed when Start returns
}

// New returns a page that shows the connections.
func New(connections clustercache.ClusterCache, options Options) *Page {
	p := &Page{
		name:     cmp.Or(options.Name, "latchkey"),
		source:   ownSource{connections},
		replicas: options.Replicas,
		fleet:    newFleet(),
		viewers:  make(chan struct{}, maxViewers),
		ended:    make(chan struct{}),
	}
	if p.replicas != nil {
		p.source = fleetSource{p.replicas, p.fleet.keys}
	}
	return p
}

// Start follows the connections until ctx is done. A manager calls it, once.
func (p *Page) Start(ctx context.Context) error {
	defer close(p.ended) // ends the streams
	p.source.follow(ctx, func(extensions []client.ObjectKey) {
		p.fleet.update(extensions, func(key client.ObjectKey) (shown, bool) { return p.source.get(ctx, key) }, time.Now())
	})
	return nil
}

// NeedLeaderElection returns false: a replica that does not lead shows that it has no connections.
func (p *Page) NeedLeaderElection() bool { return false }

// ServeHTTP serves the page, below any path that ends in a slash.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	if refusesBody(w, r) {
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are allowed", http.StatusMethodNotAllowed)
		return
	}
	if lastElement(r.URL.Path) == "live" {
		p.serveLive(w, r)
		return
	}
	// An error is that of the client's connection.
	_ = within(http.NewResponseController(w), answerTimeout, func() error {
		switch lastElement(r.URL.Path) {
		case "":
			p.writeDocument(w, http.StatusOK, false)
		case "view":
			p.serveView(w, r)
		case "connections":
			p.serveConnections(w, r)
		default:
			http.Error(w, "the page has only the paths view, live and connections below it", http.StatusNotFound)
		}
		return nil
	})
}

const (
	// answerTimeout is how long a client may take to receive an answer that is not a stream.
	answerTimeout = 30 * time.Second
	// bodyTimeout is how long the server waits for a body that it does not read.
	bodyTimeout = time.Second
)

// refusesBody answers a request that has a body, and reports whether it did. net/http would wait
// for the body before it sends any answer, as long as the client likes.
func refusesBody(w http.ResponseWriter, r *http.Request) bool {
	if r.ContentLength == 0 {
		return false
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // a recorder of a test has none
	w.Header().Set("Connection", "close")
	http.Error(w, "the page takes no request bodies", http.StatusRequestEntityTooLarge)
	return true
}

// lastElement returns what follows the last slash of a path.
func lastElement(urlPath string) string {
	_, last := path.Split(urlPath)
	return last
}

// setSecurityHeaders sets the headers of every answer. The page's scripts and styles are in the
// page itself, which names their hashes, and nothing may come from elsewhere.
func setSecurityHeaders(header http.Header) {
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", contentSecurityPolicy)
}

// view returns what the query selects, now.
func (p *Page) view(q query) (view, <-chan struct{}) {
	state := p.fleet.current()
	fleet, problems, page := viewOf(q, state)
	return view{
		Name:      p.name,
		Ready:     state.ready,
		Time:      time.Now().UTC(),
		Fleet:     fleet,
		Replicas:  replicasOf(p.replicas),
		Problems:  problems,
		Page:      page,
		Extension: selectedOf(p.fleet, q.extension),
	}, state.changed
}

func (p *Page) serveView(w http.ResponseWriter, r *http.Request) {
	q, err := queryOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	v, _ := p.view(q)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error is that of the client's connection
}
