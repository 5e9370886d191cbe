// Package access asks an API server what its own identity may do: access reviews, whether the API
// server is ready, and whom it takes the identity for.
package access
