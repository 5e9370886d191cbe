// Package e2e holds the end-to-end tests. They use a real kube-apiserver and etcd, real
// ServiceAccount tokens and real RBAC.
//
// "make controlplane" builds the programs once. Then a plain "go test ./test/e2e" finds them.
// Without the programs the tests fail and name that command.
//
// One control plane serves the whole package. A test starts a host operator: a manager with a
// ClusterCache. The host operator runs as a user with the permissions of config/rbac and no more.
// The test uses the public API. Then the test checks the objects, the status codes and the audit
// log of the API server.
//
// The tests stop every operator, and check that the operator leaves no goroutine behind. No test
// sleeps: tests wait for conditions. The time limits are generous for a loaded machine, and no test
// measures them.
package e2e
