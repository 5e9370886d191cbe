// Package testutil has the small test doubles that tests of several packages share.
package testutil
