// Package plugin has the commands of kubectl-latchkey.
package plugin
