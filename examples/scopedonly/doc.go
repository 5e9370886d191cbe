// Package main is an operator that acts with its own permissions, without latchkey's connections:
// it logs how many ConfigMaps and Secrets each namespace has. With the scoped cache it starts and
// stays up without permissions on one of these kinds, says at /readyz/permissions which one is
// missing, and begins to count when the permission is granted. With controller-runtime's own cache
// it would end after two minutes.
//
//	go run ./examples/scopedonly
//	curl -s localhost:8081/readyz/permissions
package main
