// Package leastrole writes RBAC rules and roles that grant some permissions and nothing else.
package leastrole
