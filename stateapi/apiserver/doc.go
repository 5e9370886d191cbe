// Package apiserver serves Kubernetes APIs from typed stores, behind another API server: an
// aggregated API without etcd, for state that a program has in memory or elsewhere.
//
// # Setup
//
// The API server in front needs its aggregation layer, as every usual cluster has it. The program's
// identity needs two bindings:
//
//   - ClusterRole system:auth-delegator, to ask who sends requests and what they may do,
//   - Role extension-apiserver-authentication-reader in namespace kube-system, to learn how the API
//     server in front authenticates.
//
// An APIService with the group and version, and with the certificate authority of the server as its
// caBundle, leads to a Service that leads to the program. Delete the APIService before the program:
// while an APIService has no server, no namespace of the cluster can be deleted.
//
// # Usage
//
// [NewExtensionAPIServer] creates a server, [InstallStore] adds a resource, and
// [ExtensionAPIServer.Run] serves; [ExtensionAPIServer.Check] says before what the program lacks
// for it. A store is any type that implements [Lister] and, as it likes, [Getter], [Watcher],
// [Creater], [Updater] and [Deleter]. The resource has exactly these verbs: a store that only reads
// is a read-only resource. [MemoryStore] lists, gets and watches what its owner puts into it, and
// is meant to be embedded.
//
// InstallStore refuses what cannot be served: a nil store ([ErrNilStore]), a second one for a
// resource ([ErrDuplicateStore]), a store without List ([ErrNoLister]), or with Update or Delete
// and without Get ([ErrNoGetter]), a method with the name of a verb and another signature
// ([ErrOtherSignature]), and a list type that is none ([ErrNotAList]). After Run it returns
// [ErrStarted]. A store that is a [Starter] is called before the first request.
//
// What a store must know:
//
//   - Its methods are called from many goroutines.
//   - It does what the options say. The store itself restricts a list or a watch to the namespace
//     of the [Context], to selectors and to a page, and stores nothing in a dry run.
//   - Update compares the resourceVersion, if the object has one, with the stored one, and returns
//     a Conflict of apierrors. The server computes a patch again then, up to five times.
//   - What it returns belongs to the caller, and is not nil without an error.
//   - A watch with options.SendInitialEvents begins with all objects as ADDED, and then a bookmark
//     with the annotation k8s.io/initial-events-end; informers of client-go wait for that. A store
//     that cannot do so returns an error, and informers list instead.
//   - Finalizers are the store's: a deletion calls Delete at once.
//
// There are no subresources, no deletions of collections and no admission. Use one replica, or let
// only the leader serve, unless all have the same objects with the same versions.
//
// Everything else is the library's, k8s.io/apiserver: negotiation, discovery, OpenAPI, kubectl
// explain, tables, patches, server-side apply, authentication, authorization, draining.
//
// # Considerations
//
//   - No request is anonymous. Headers that name a user count only with the certificate of the API
//     server in front, whose authority may change while the server runs.
//   - The server answers in JSON or YAML. A client that prefers protobuf gets JSON.
//   - Errors of stores are those of apierrors, also wrapped. Other errors are status 500, with
//     their text: write none that users must not see.
//   - An update of an object that does not exist creates it if the store can create, and if the
//     user may. An update of an object that was read before, and deleted since, is NotFound.
//   - A watch of a [MemoryStore] has no buffer: its client may be behind by the store's history. A
//     client that reads nothing for WatchTimeout, or is behind the history, begins anew. Watches
//     delay neither the owner of the store nor each other.
//   - The design owes its shape, typed stores that are found by assertion, to the extension API
//     server of Rancher's steve.
package apiserver
