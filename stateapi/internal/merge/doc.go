// Package merge decides what is shown of each extension of a fleet, of which each replica says what
// it has, and which reads must wait for that.
//
// # Considerations
//
//   - A replica that has an extension claims it, with the term of its lease: a number that grows
//     from one holder to the next. The claims of two replicas come by two ways, and either may be
//     late. So the higher term is shown, and what was shown is not followed by a lower one.
//   - What a replica said holds as long as it is heard. Later its claim is still shown, as what it
//     was then, and for no more than that. It may have taken others since, so while one is not
//     heard, no extension is shown as one that no replica has.
//   - Another replica may have shown what this one has not heard yet. So while another one may
//     serve, and until all were asked after that, Reads makes reads wait; and what was not heard in
//     time is shown as what a replica said that is not heard, while there is a Doubt: design 064.
//   - The package does no I/O and reads no clock. A View, Reads, and a Doubt are for one goroutine
//     at a time.
package merge
