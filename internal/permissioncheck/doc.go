// Package permissioncheck asks an API server, as an identity, which permissions it lacks to apply,
// read and delete some objects.
package permissioncheck
