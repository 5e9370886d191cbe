// Package config holds the YAML that a cluster needs, for kubectl and, embedded, for programs.
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
// # Usage
//
// crd has our own ClusterExtension (clusterextensions.latchkey.dev), rbac what a host operator
// needs for itself, admission the policy that lets nobody name a ServiceAccount that they may not
// act as. Programs read the same from [Manifests].
//
// admission-olm is the policy for Operator Lifecycle Manager's kind of the same name. Apply it if
// your operator uses that kind, as clustercache.OLMClusterExtension has it. It lets pass whatever
// names no ServiceAccount.
//
// Three more folders have examples to copy and edit, which nothing applies by default:
// admission-namespaced has the policy for namespaced kinds, admission-kubeconfigs that for
// references to Secrets, and rbac-examples has roles of less privilege than those in rbac, one file
// per way of acting as tenants. What to bind instead of latchkey-operator:
//
//	credential.ServiceAccountTokens  rbac-examples/tokens-by-name.yaml or tokens-in-a-namespace.yaml
//	credential.Impersonation         rbac-examples/impersonation.yaml or constrained-impersonation.yaml
//	credential.KubeconfigSecrets     rbac-examples/kubeconfig-secrets.yaml
//
// # Considerations
//
// Nothing here replaces or refuses what belongs to another project, but for admission-olm, which is
// asked for by name. A cluster-scoped extension without the admission policy, or the like, lets
// whoever may write it act as any ServiceAccount of the cluster.
//
// The ClusterRole in rbac allows tokens of every ServiceAccount, so whoever takes such an operator
// over has the cluster. docs/security.md says what each right gains an attacker, and how to narrow
// it.
package config
