// Package fluxlike is an example of a host operator with a namespaced kind of its own: a Release,
// whose data the operator writes into a ConfigMap of the Release's namespace. The operator acts as the
// ServiceAccount that the Release names, or else as the ServiceAccount "deployer", in the Release's
// namespace.
//
// # Setup
//
// [SetupWithManager] adds the ClusterCache and the controller to a manager. Apply the files in config
// first: the kind, the roles, and the admission policy, which is config/admission-namespaced with the
// kind, the field and the default name filled in. cmd/fluxlike is the program.
//
// # Usage
//
//	kubectl create namespace shop
//	kubectl -n shop create serviceaccount deployer
//	kubectl -n shop create rolebinding deployer --clusterrole=edit --serviceaccount=shop:deployer
//	kubectl -n shop apply -f config/sample.yaml
//	kubectl -n shop get releases,configmaps
//
// # Considerations
//
//   - The controller calls For with the Release that it has read. A Release that names another
//     ServiceAccount by now is never released with the permissions of the previous one.
//   - A finalizer deletes the ConfigMap, as the ServiceAccount. If the ServiceAccount is gone first,
//     the Release stays Terminating, and the condition Connected says why. The annotation
//     [OrphanAnnotation] lets it go, and leaves the ConfigMap.
//   - The controller watches its ConfigMaps as the ServiceAccount, so it also repairs changes. While
//     the ServiceAccount may not watch them, changes go unnoticed.
//   - release_test.go has unit tests without an API server, fluxlike_test.go a test with one.
package fluxlike
