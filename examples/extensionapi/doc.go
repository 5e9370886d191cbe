// Package extensionapi is an example of package stateapi/apiserver: an aggregated API with a store
// that can be written to.
//
// [Store] keeps reservations in memory. It takes reading and watching from apiserver.MemoryStore,
// and adds create, update and delete. [NewServer] serves it.
package extensionapi
