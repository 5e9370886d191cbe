package connstate

// Reachability is what is known about whether a target answers. Lower is better.
type Reachability int

const (
	// Reachable: the target answered, and no request met silence since.
	Reachable Reachability = iota
	// Unknown: nothing was asked yet.
	Unknown
	// Unresponsive: a request got no answer, and none got one since.
	Unresponsive
)
