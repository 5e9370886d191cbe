// Package objectlist creates empty lists for objects of any kind and representation.
//
// # Setup
//
// None.
//
// # Usage
//
// [New] returns an empty list, for use with a client's List.
//
// # Considerations
//
//   - The list has the representation of the object: typed, unstructured, or metadata.
package objectlist
