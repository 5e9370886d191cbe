// Package listwatch lists and watches for informers, and reports every answer of the API server.
package listwatch
