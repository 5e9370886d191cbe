package merge

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Kind is what is known of an extension.
type Kind int

const (
	// Absent means: the extension does not exist.
	Absent Kind = iota
	// Unclaimed means: the extension exists, all members are heard, and none has it.
	Unclaimed
	// Held means: a replica that is heard has it.
	Held
	// Silent means: the replica that had it last is not heard, or in doubt.
	Silent
	// Unsure means: the extension exists, no replica that is heard has it, and one that is not, or in
	// doubt, may have it.
	Unsure
)

// Claim is what a replica says of an extension that it has.
type Claim struct {
	Replica string
	UID     types.UID // of the extension
	Term    int64     // of the lease in which the replica acts; 0 if there is none
	Heard   bool      // whether the replica is heard
	Doubted bool      // whether there is a Doubt about the replica
	Order   uint64    // the later of two claims has the higher one
}

// Floor is the highest term of an extension that was shown.
type Floor struct {
	UID  types.UID
	Term int64
}

// Choice is what is shown of an extension.
type Choice struct {
	Kind    Kind
	Replica string // of Held and Silent
	Term    int64
	UID     types.UID
	// Contested: more than one replica that is heard claims the extension.
	Contested bool
	// Late: a replica that is heard claims the extension in a term that is lower than the floor.
	Late bool
}

// Choose decides what is shown of an extension. known is its UID, "" if it is not known to exist.
// Claims of another UID are of an extension that was deleted, or is not known yet: they count only
// while none is known. unheard says that a replica is not heard, or in doubt: it may have taken
// what it had not.
func Choose(known types.UID, claims []Claim, floor Floor, unheard bool) Choice {
	var best, live *Claim
	heard := map[string]bool{}
	for i := range claims {
		claim := &claims[i]
		if known != "" && claim.UID != known {
			continue
		}
		if best == nil || compare(claim, best) > 0 {
			best = claim
		}
		if claim.Heard {
			heard[claim.Replica] = true
		}
		if claim.isVouched() && (live == nil || compare(claim, live) > 0) {
			live = claim
		}
	}
	choice := Choice{Kind: Unclaimed, UID: known, Contested: len(heard) > 1}
	above := func(claim *Claim) bool { return claim.UID != floor.UID || claim.Term >= floor.Term }
	switch {
	case live != nil && above(live) && (!best.Doubted || best.Term <= live.Term):
		choice.Kind, choice.Replica, choice.Term, choice.UID = Held, live.Replica, live.Term, live.UID
	case best != nil && !best.isVouched() && above(best):
		choice.Kind, choice.Replica, choice.Term, choice.UID = Silent, best.Replica, best.Term, best.UID
	case best == nil && known == "":
		choice.Kind = Absent
	case unheard:
		choice.Kind = Unsure
	}
	choice.Late = live != nil && choice.Kind != Held
	if choice.UID == "" && best != nil {
		choice.UID = best.UID
	}
	return choice
}

// isVouched reports whether what the claim says may be shown as what is so.
func (c *Claim) isVouched() bool { return c.Heard && !c.Doubted }

// compare compares two claims: the higher term is newer, and of equal ones the later.
func compare(x, y *Claim) int {
	return cmp.Or(cmp.Compare(x.Term, y.Term), cmp.Compare(x.Order, y.Order))
}

// raise returns the floor after a choice was shown.
func (f Floor) raise(shown Choice) Floor {
	switch {
	case shown.Kind != Held && shown.Kind != Silent:
		return f
	case f.UID != shown.UID:
		return Floor{shown.UID, shown.Term}
	default:
		return Floor{f.UID, max(f.Term, shown.Term)}
	}
}

// sortedReplicas returns the replicas of the claims.
func sortedReplicas(claims []Claim) (names []string) {
	for _, claim := range claims {
		names = append(names, claim.Replica)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
