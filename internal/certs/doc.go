// Package certs issues certificates from certificate authorities that live in memory.
//
// # Setup
//
// None. [NewAuthority] creates an authority.
//
// # Usage
//
// [Authority.Issue] issues a certificate for a server or a client. A peer that
// trusts [Authority.PEM] accepts it.
//
// # Considerations
//
// Keys are of P-256. The key of an authority ends with the process, unless [Authority.KeyPEM]
// encodes it.
package certs
