// Package deploy has the tests of deploy/kustomize: on a real kube-apiserver, with the manager as a
// process that has exactly the identity, the permissions and the flags of the manifests. The tests
// of the Helm chart need Helm, and are in module test/deploy.
package deploy
