// Package config holds the YAML that a cluster needs. kubectl reads the files; programs read the
// embedded copies.
//
// # Setup
//
//	kubectl apply -f config/crd -f config/rbac -f config/admission # the Roles go to the current namespace
//	kubectl create clusterrolebinding latchkey-operator --clusterrole=latchkey-operator --serviceaccount=<namespace>:<name>
//	kubectl create rolebinding latchkey-leader-election --role=latchkey-leader-election --serviceaccount=<namespace>:<name>
//
// For CacheOptions.WatchRBAC also:
//
//	kubectl create clusterrolebinding latchkey-rbac-events --clusterrole=latchkey-rbac-events --serviceaccount=<namespace>:<name>
//
// For watches of sets of namespaces also:
//
//	kubectl create clusterrolebinding latchkey-namespaces --clusterrole=latchkey-namespaces --serviceaccount=<namespace>:<name>
//
// # Usage
//
// crd defines latchkey's own ClusterExtension (clusterextensions.latchkey.dev). rbac has the
// permissions that a host operator itself needs. admission has a policy: users may name only
// ServiceAccounts that they may impersonate. Programs read the same files from [Manifests],
// which returns [CRD], [RBAC] and [Admission] unless other folders are requested.
//
// admission-olm ([AdmissionOLM]) has the policy for Operator Lifecycle Manager's kind of the same
// name. Apply the policy if your operator uses that kind through clustercache.OLMClusterExtension.
// The policy permits objects that name no ServiceAccount.
//
// Three more folders have examples to copy and edit; nothing applies them by default.
// admission-namespaced ([AdmissionNamespaced]) has the policy for namespaced kinds.
// admission-kubeconfigs ([AdmissionKubeconfigs]) has the policy for references to Secrets.
// rbac-examples ([RBACExamples]) has roles of less privilege than those in rbac, one file
// per way of acting as tenants. Bind one of these instead of latchkey-operator:
//
//	credential.ServiceAccountTokens  rbac-examples/tokens-by-name.yaml or tokens-in-a-namespace.yaml
//	credential.Impersonation         rbac-examples/impersonation.yaml or constrained-impersonation.yaml
//	credential.KubeconfigSecrets     rbac-examples/kubeconfig-secrets.yaml
//
// stateapi ([StateAPI]) has what "latchkey manager --state-api" needs, and [StateAPIManifests] the
// same for other names. docs/stateapi.md says when to apply it, and what to delete first.
//
// # Considerations
//
// No file replaces or denies objects of another project, except those in admission-olm, which must
// be requested by name. Without the admission policy, or a similar guard, a cluster-scoped
// extension is dangerous. Anyone who may write the extension can then act as any ServiceAccount of
// the cluster.
//
// The ClusterRole in rbac allows tokens of every ServiceAccount. So an attacker who takes over such
// an operator controls the cluster. docs/security.md lists the gain of an attacker for each
// permission, and how to narrow the permission.
package config
