// Package statuspage shows the connections of a ClusterCache to people, in a browser: the state of
// the fleet, a table to filter and sort, and for one extension what happened to it, what its
// connection reads and what to do.
//
// # Setup
//
//	page := statuspage.New(connections, statuspage.Options{Name: "team-operator"})
//	err := mgr.Add(page)
//	mux := http.NewServeMux()
//	mux.Handle("/status/", statuspage.Local(page))
//	err = mgr.Add(&manager.Server{Listener: listener, Server: &http.Server{Handler: mux}})
//
// where the listener is one on 127.0.0.1: people reach the page through kubectl port-forward. On
// the network, serve page.Guard(mgr.GetClient(), "/status/") instead, with TLS: Guard authenticates
// requests, and shows people a form to sign in with a token. The page must be served below a path
// that ends in a slash.
//
// Where replicas share the extensions, set Options.Replicas to what StateAPI.Replicas of package
// stateapi returns: then the page of each replica has the extensions of all.
//
// Do not add the page to the manager's metrics server. Without a FilterProvider that server shows
// the page to everyone who reaches its port, and with one a browser cannot send it a token.
//
// # Usage
//
// Open the path. Everything on the page follows the connections by itself. The address of the page
// contains the filter and the selected extension, so that it can be passed on. Programs get the
// same as JSON from view below the path, and every change of it as server-sent events from live;
// both take the parameters of the page's own address. For a shell, connections below the path is a
// table of all connections, or of the one that the query extension names, or their JSON with
// format=json.
//
// # Considerations
//
//   - The page changes nothing, and contains no secret. It does name identities, API servers,
//     Secrets and watched kinds of all tenants: serve it without authentication on loopback only,
//     through Local, which refuses requests that other web sites make through a browser.
//   - Only the replica that leads has connections. The page of another one says so. With
//     Options.Replicas, extensions of a replica that is not heard in time are Unknown, with the time
//     when it was heard last, and each replica keeps the rows and timelines of all extensions.
//   - Timelines are in memory: the newest 64 entries of an extension, and 50,000 in all, those of a
//     removed extension for an hour. They begin when the process begins to lead. Changes that
//     follow each other within milliseconds can be one entry.
//   - Behind a proxy: nginx needs nothing, because live asks it not to buffer. Elsewhere switch off
//     buffering and compression of answers for live, and let it be silent for 15 s. While nothing
//     comes, the page says that it waits.
//   - At most 32 browsers follow the page at a time. A stream ends after five minutes and the page
//     opens another, so that permissions are checked again.
package statuspage
