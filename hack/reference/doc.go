// Package main writes docs/reference.md from the code: flags, options, reasons and metrics.
//
// # Usage
//
//	go run ./hack/reference > docs/reference.md
//
// "make generate" does so, and a test compares the page with the code.
package main
