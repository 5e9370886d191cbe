// Package compile compiles programs with the go command and says how far it is. It imports the
// standard library only, so that it is ready before anything is downloaded.
package compile
