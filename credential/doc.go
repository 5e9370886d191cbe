// Package credential determines the identity that a connection acts as, and proves that identity on
// every request.
//
// # Setup
//
// The author of a host operator chooses a [Provider]:
//
//   - [ServiceAccountTokens], the default, for extensions that name a ServiceAccount of their
//     cluster; with a [Target], at other API servers that trust its issuer (see [TargetAudience]).
//   - [Impersonation], for the same extensions, without tokens.
//   - [KubeconfigSecrets], for other API servers.
//   - [FromRESTConfigMapper], for everything else.
//   - [Choose], for one of these per object.
//
// For example:
//
//	credential.ServiceAccountTokens(credential.ServiceAccountOptions{
//		NamespacePath: "metadata.namespace",
//		NamePath:      "spec.serviceAccountName",
//	})
//
// # Usage
//
// Set clustercache.Options.Credentials to the [Provider]. Package clustercache binds the provider
// to the cluster of the extensions, and resolves an extension at each reconcile, from caches only.
// A connection continues when only the secret behind its identity changes: a rotated token, Secret
// or certificate is used after the API server has stated the same identity for it. Another
// ServiceAccount, Secret or API server is another connection.
//
// Some functions in the options choose the Reason in the extension's state with their errors. A
// Reference function, Impersonate and the function of Choose may wrap [ErrNotAllowed], or
// [ErrPending] for an extension that names nothing yet, and so may Target; their other errors have
// the reason InvalidReference. Errors of AllowTarget, AudienceOwner, KubeconfigOptions.Allow and
// AllowImpersonate have the reason NotAllowed. The function for FromRESTConfigMapper may wrap
// [ErrInvalidReference], [ErrNotAllowed] or [ErrInvalidCredential]. [SecretsGuardedByAdmission] is
// an Allow for extensions that an admission policy guards. [CheckTarget] says what is missing
// between two clusters.
//
// # Considerations
//
//   - Fail closed. A target's config starts from an allow-list of fields. The RoundTripper
//     overwrites Authorization and removes every impersonation header. A request without a token
//     fails here, and is not sent as another identity.
//   - Tokens come from the TokenRequest API, with the UID of the ServiceAccount as a precondition.
//     Extensions that name the same ServiceAccount share one token. The token is kept until the
//     last of these extensions is gone. After 60 to 80 % of the time for which it may be sent, which
//     ends 10 s before its expiry, the token is renewed, by one request at a time.
//   - At a remote API server, a renewed token is used after that server has stated the same
//     identity for it, and no sooner: after a signing key that it does not know, the connection
//     goes on with the token that works. A token leaves only if it has one audience, and the host operator's own
//     API server has refused it.
//   - With ServiceAccountTokens, a request that gets a 401 is sent once more with a newer token, if
//     its body can be read again. A write is still applied only once. Without a valid token
//     requests fail here, with a [NoTokenError]. With other credentials a 401 is returned
//     unchanged.
//   - Anyone who may write an extension chooses the identity that the extension acts as. The host
//     operator's author must therefore decide which identities an extension may name: with
//     Options.AllowIdentity of clustercache for ServiceAccounts, with [KubeconfigOptions].Allow for
//     Secrets, with AllowImpersonate for ServiceAccounts of a kubeconfig's cluster.
//   - A kubeconfig is data: this package runs no program and opens no file that a kubeconfig names.
//     A kubeconfig with such a field is refused, and the error names the field.
//   - Secrets are kept in closures, so printing any value of this package with %+v shows no secret.
//     TokenRequests do not pass through client-go's body logging.
//   - The interfaces are sealed, so that later versions can add methods. [FromRESTConfigMapper]
//     accepts credentials from other sources.
package credential
