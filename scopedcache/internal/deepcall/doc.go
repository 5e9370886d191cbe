// Package deepcall runs deep calls on goroutines that end.
//
// The stack of a goroutine grows when calls need it and stays that large while the goroutine waits,
// as the one of an informer does for hours. So [Run] runs a deep call on a goroutine of its own, as
// if it were an ordinary call: it returns what the call returns, and panics if the call panics.
package deepcall
