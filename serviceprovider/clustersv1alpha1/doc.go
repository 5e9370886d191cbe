// Package clustersv1alpha1 has the requests with which a service provider obtains access to
// clusters: ClusterRequest and AccessRequest of clusters.openmcp.cloud/v1alpha1, as openMCP's
// platform clusters serve them.
//
// # Setup
//
// Only if you read requests yourself, add the kinds to your scheme:
//
//	err := clustersv1alpha1.AddToScheme(scheme)
//
// A platform cluster of openMCP serves the kinds already. [CRDs] has definitions for tests and
// demos only: they lack fields and kinds that a platform needs. Do not apply them to a platform
// cluster.
//
// # Usage
//
// Package serviceprovider creates, updates and deletes the requests, and reads the Secrets. Use the
// types to read a request ([AccessRequestList], [ClusterRequestList], the phases [PhasePending],
// [PhaseGranted] and [PhaseDenied]), or to play the platform in a test: it grants a ClusterRequest
// of [PurposeWorkload] a cluster, and an AccessRequest a Secret.
//
// Such a Secret has [SecretKeyKubeconfig], and perhaps [SecretKeyHost], [SecretKeyCA],
// [SecretKeyToken], [SecretKeyClientID], and the times [SecretKeyCreationTimestamp] and
// [SecretKeyExpirationTimestamp], which [Timestamp] reads.
//
// # Considerations
//
//   - The types have the wire form of openMCP's, but only the fields that package serviceprovider
//     needs. An Update with these types would drop the other fields: change requests with a Patch.
//   - "make generate" writes the deep copies and the definitions from the types.
//
// +kubebuilder:object:generate=true
// +groupName=clusters.openmcp.cloud
// +versionName=v1alpha1
package clustersv1alpha1
