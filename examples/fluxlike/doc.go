// Package fluxlike is an example of a host operator with a namespaced kind of its own: a Release,
// whose data the operator writes into a ConfigMap of the Release's namespace. The operator acts as
// the ServiceAccount that the Release names, or else as the ServiceAccount "deployer", in the
// Release's namespace.
//
// # Setup
//
// [SetupWithManager] adds the ClusterCache and the controller to a manager. Apply the files in
// config first: the kind, the roles, and the admission policy, which is config/admission-namespaced
// with the kind, the field and the default name filled in. cmd/fluxlike is the program, here as a
// user of your choice:
//
//	kubectl apply -f examples/fluxlike/config
//	kubectl create clusterrolebinding fluxlike --clusterrole=fluxlike-operator --user=USER
//	go run ./examples/fluxlike/cmd/fluxlike
//
// # Usage
//
// The ServiceAccount needs create and patch on configmaps to release, list and watch to notice
// changes, and delete for the finalizer. The condition Released names what is missing:
//
//	kubectl create namespace shop
//	kubectl -n shop create serviceaccount deployer
//	kubectl -n shop create role deployer --resource=configmaps --verb=create,patch,list,watch,delete
//	kubectl -n shop create rolebinding deployer --role=deployer --serviceaccount=shop:deployer
//	kubectl -n shop apply -f examples/fluxlike/sample.yaml
//	kubectl -n shop get releases,configmaps
//
// # Considerations
//
//   - The controller calls For with the Release that it has read. A Release that names another
//     ServiceAccount by now is never released with the permissions of the previous one.
//   - A finalizer deletes the ConfigMap, as the ServiceAccount. If the ServiceAccount is gone
//     first, the Release stays Terminating, and the condition Connected says why. The annotation
//     [OrphanAnnotation] lets it go, and leaves the ConfigMap.
//   - When a whole namespace is deleted, its ServiceAccounts may go before its Releases, which then
//     wait for the annotation. For content in the object's own namespace, as here, an
//     ownerReference in place of the finalizer avoids that; the finalizer is for content elsewhere.
//   - The controller watches its ConfigMaps as the ServiceAccount, so it also repairs changes.
//     Nothing is written while the ServiceAccount may not watch.
//   - The controller waits for events. It polls only where a write is Forbidden and no permission
//     is missing, as with a quota.
//   - The default ServiceAccount is in release.go and in config/admission.yaml; keep them equal.
//   - release_test.go has unit tests without an API server, and fluxlike_test.go tests with one,
//     from envtest: set KUBEBUILDER_ASSETS, or skip these with -short. Copy both;
//     docs/guide-testing.md explains them.
package fluxlike
