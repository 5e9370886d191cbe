// Package lightinformer has an informer that costs little until objects arrive, and the reads of
// its store. client-go's Reflector lists and watches.
//
// client-go's SharedIndexInformer runs eight goroutines, and two more with a buffer of 16 KiB for
// each event handler. A process with thousands of informers, most of which see few objects, spends
// most of its memory on that. Here the Reflector changes the store itself and puts the
// notifications into the queue of each handler. A handler has a goroutine only while its queue is
// not empty.
package lightinformer
