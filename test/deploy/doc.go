// Package deploy has the tests of the Helm chart. "make test-deploy" builds Helm and runs them.
package deploy
