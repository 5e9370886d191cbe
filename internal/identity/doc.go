// Package identity has what the sealed interfaces of package credential pass to clustercache and
// accessor: the Resolver of extensions, the Resolution and the Credential, the Kind of the
// extensions, and Anonymous, from which every config of a connection starts.
package identity
