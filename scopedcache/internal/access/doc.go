// Package access asks an API server about its own identity: which access it has, whether the server
// is ready, and which username and groups the server states.
package access
