// Package statuspage has the tests of the status page in Chromium. "make test-statuspage" installs
// axe and runs them.
package statuspage
