// Package credential decides whom a connection acts as, and proves it on every request.
//
// # Setup
//
// The author of a host operator picks a [Provider]: [ServiceAccountTokens], the default, and
// [Impersonation] for extensions that name a ServiceAccount of their cluster; [KubeconfigSecrets]
// for other API servers; [FromRESTConfigMapper] for everything else.
//
//	credential.ServiceAccountTokens(credential.ServiceAccountOptions{
//		NamespacePath: "metadata.namespace",
//		NamePath:      "spec.serviceAccountName",
//	})
//
// # Usage
//
// clustercache binds the provider to the cluster of the extensions and resolves every extension on
// every reconcile, from caches only. A [Resolution] tells the target, the expected identity, a key
// that changes exactly when the connection must, and a version that changes with the secret behind
// the same key. Its Open yields the [Credential] whose RoundTripper authenticates requests.
//
// # Considerations
//
//   - Fail closed. What reaches a target starts from an allow-list of fields ([Anonymous]); the
//     RoundTripper overwrites Authorization and removes every impersonation header, and a request
//     without a token is refused here instead of being sent as somebody else.
//   - Tokens come from the TokenRequest API with the UID of the ServiceAccount as a precondition,
//     are shared by extensions that name the same ServiceAccount, kept until the last of them goes,
//     and renewed after 60 to 80 % of their life by one request at a time.
//   - With ServiceAccountTokens a request that is refused with a 401 is sent once more with a newer
//     token, if its body can be read again; a write is applied once all the same. Without a valid
//     token requests fail here, with a [NoTokenError]. With other credentials a 401 is returned as
//     it is.
//   - Whoever may write an extension says whom it acts as, so somebody must say who may name whom:
//     clustercache's Options.AllowIdentity for ServiceAccounts, [KubeconfigOptions].Allow for
//     Secrets.
//   - A kubeconfig is data: nothing in it is run or opened. What would do so is refused by name.
//   - Secrets are kept behind closures, so that printing any value here with %+v shows none, and
//     TokenRequests do not pass through client-go's body logging.
//   - The interfaces are sealed so that they can grow; [FromRESTConfigMapper] is the way in for
//     others.
package credential
