// Package objectlist makes lists for objects of any kind and representation.
//
// # Setup
//
// There is none.
//
// # Usage
//
// [New] returns an empty list to read into.
//
// # Considerations
//
//   - The list has the representation of the object: typed, unstructured, or metadata.
package objectlist
