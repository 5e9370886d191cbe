// Package connection is what a successful connect makes: a config, clients and a cache that act as
// one identity at one API server, until the connection ends.
package connection
