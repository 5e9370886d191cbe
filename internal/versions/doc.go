// Package versions compares resource versions by apimachinery's rules, for callers that must go on
// when an API server's versions cannot be compared. The package is pure.
package versions
