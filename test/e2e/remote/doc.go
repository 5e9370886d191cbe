// Package remote tests extensions that act, as a ServiceAccount of the host operator's cluster, at
// other clusters that trust its issuer: three real API servers.
package remote
