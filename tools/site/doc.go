// Package main makes a static site of the documentation: docs/*.md, README.md and the other pages of
// the root. docs/README.md is the navigation. The pages stay plain Markdown, and read well without it.
//
// # Usage
//
//	make site # in dist/site
//
// # Considerations
//
//   - A link to a page becomes a link to its HTML, a link to another file of the repository one to the
//     forge. A link to a page or an anchor that does not exist is an error.
//   - The site needs no script and nothing from elsewhere. Diagrams in Mermaid stay text; the forge
//     draws them.
package main
