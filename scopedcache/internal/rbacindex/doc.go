// Package rbacindex knows whose permissions a change of RBAC may change.
package rbacindex
