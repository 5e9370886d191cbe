// Package stateapi tests extension API servers behind a real kube-apiserver, with a real kubectl.
package stateapi
