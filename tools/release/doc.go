// Command release builds what a release consists of, in a folder: binaries for each platform, an
// SBOM in SPDX for each binary, the chart, the notes, and checksums of them all.
//
// # Setup
//
// Run it from the root of a clean checkout ("make release" does).
//
// # Usage
//
//	release -version v0.1.0 -out dist
//
// # Considerations
//
// Two runs on one commit give the same bytes, with the same version of Go: no file has a time other
// than that of the commit, and no path of the machine. Nothing is published.
package main
