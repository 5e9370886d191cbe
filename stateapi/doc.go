// Package stateapi shows the connections of a ClusterCache as a Kubernetes API: "kubectl get
// connections", "kubectl get scopes", "kubectl wait --for=condition=Connected connection/x". Where
// several operators serve a state API, each in a Group of its own, these names are those of one of
// them: give the full name, such as connections.state.team.example.com.
//
// # Setup
//
//	api, err := stateapi.New(connections, stateapi.Options{
//		Config:  mgr.GetConfig(),
//		Group:   "state.team.example.com",
//		Service: stateapi.ServiceOptions{Namespace: "team-system", Name: "team-state", Address: podIP},
//	})
//	err = mgr.Add(api)
//
// It runs where the connections are: on the leader. The cluster needs the output of "latchkey
// state-api manifests", which has the Service, the APIService and the permissions.
//
// # Usage
//
// Package v1alpha1 has the two kinds. A Connection has the name and namespace of its extension, and
// conditions Connected and Healthy. A Scope is a kind, in a namespace or with selectors, that the
// connection's cache reads. Both can be selected by the fields status.state and status.reason, and
// scopes by status.extension.
//
// # Considerations
//
//   - To uninstall, delete the APIService before the program: while it has no server, no namespace
//     of the cluster can be deleted.
//   - If replicas share the extensions (clustercache.Options.Ownership), set Options.Fleet. Without
//     it, each has the connections of its share, and all of them would serve the API in turns.
//     StateAPI.Replicas has the view of all for the status page.
//   - Nothing is written to etcd, and nothing can be changed through the API.
//   - What changes all the time, the times and failures of probes, is as of the answer and has no
//     resourceVersion of its own. Numbers of objects are in the answer to a get only,
//     because a list would ask each connection for them.
//   - Who may read connections sees the names of identities, API servers, Secrets and watched kinds
//     of all tenants, or of those in a namespace. No secret is in them.
//   - A retry of a connection shows as Disconnected, with the time since which there is none.
package stateapi
