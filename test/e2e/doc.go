// Package e2e holds the end-to-end tests: a real kube-apiserver and etcd, real ServiceAccount
// tokens, real RBAC.
//
// "make controlplane" builds the programs once; then a plain "go test ./test/e2e" finds them.
// Without them the tests fail and name that command.
//
// One control plane serves the whole package. A test starts a host operator (a manager with a
// ClusterCache, as a user with the permissions of config/rbac and no more), works through the
// public API, and checks what the API server says: its objects, its status codes and its audit log.
//
// Every operator is stopped and then leaves no goroutine. Nothing sleeps: tests wait for
// conditions, with bounds that are generous for a loaded machine and are never what is measured.
package e2e
