// Package ownwrites lets the reads of a client include what the client itself has written. A cache
// is fed by watches, so it learns of a write a moment after the client does.
//
// [Client] is a client that reports its writes to the [Writes] of a cache. They remember each
// write until every informer of the kind has it, as a requirement that is compared with what an
// informer has. The comparison is a pure function of both (see requirement.judge). Package
// scopedcache asks before it reads from an informer, and waits, or asks the API server if only that
// can tell.
//
// What is known about a write comes from its answer:
//
//   - Most answers have the version of the object. An informer has the write when it has seen that
//     version, or a later one of the kind.
//   - The answer to a deletion names the UID of what is gone. An informer has the deletion when it
//     has seen a version of that object, and does not have the object any more.
//   - If the outcome is unknown, for example after a timeout, or if the write concerns objects that
//     are not named, as DeleteAllOf does, then reads go to the API server. They go there until the
//     informer has the version of such a read.
//   - An informer that sends its first list after the write has it. Its first list is therefore a
//     consistent one.
//
// Versions are compared with the rules of apimachinery's package resourceversion. If the versions
// of an API server cannot be compared, nothing waits. The idea, and the option of single calls, are
// those of controller-runtime's EnableReadYourWritesConsistency, which waits for the events of all
// namespaces.
package ownwrites
