package connstate

// Reachability is whether a target answers, as far as known. Lower is better.
type Reachability int

const (
	// Reachable means: the target answered, and no request went unanswered since.
	Reachable Reachability = iota
	// Unknown means: no request was sent yet.
	Unknown
	// Unresponsive means: a request got no answer, and no request got an answer since.
	Unresponsive
)
