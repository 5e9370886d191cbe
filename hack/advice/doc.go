// Package main writes the texts of package advice from docs/operations.md.
//
// # Usage
//
//	go run ./hack/advice > internal/advice/zz_generated.reasons.go
//
// "make generate" does so, and a test of package architecture compares the two.
package main
