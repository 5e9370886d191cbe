// Package holding holds a lease with client-go's leader election, with a fence, for as long as a
// function runs.
package holding
