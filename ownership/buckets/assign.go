package buckets

import (
	"cmp"
	"hash/fnv"
	"math/bits"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// bucketOf returns the bucket of an extension, out of n. Buckets are ranges of equal size of the
// hash that Kubernetes' sharded list and watch uses (KEP-5866): FNV-1a of 64 bits over the UID.
func bucketOf(uid types.UID, n int) int {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(uid)) // never fails
	bucket, _ := bits.Mul64(hash.Sum64(), uint64(n))
	return int(bucket)
}

// assign returns which of the members should hold each bucket, given who holds each now: "" for
// none. It depends on nothing else, so that all members come to the same result. Each member gets
// its part, rounded down or up: no two differ by more than one bucket.
//
// A member keeps what it holds, up to its part. The rest is rendezvous hashing with that bound:
// each bucket has a score with each member, and the pairs get each other in the order of their
// scores, as long as the bucket is free and the member has room. Those that come first to what is
// left over, one bucket each, have their part rounded up. While the result is being carried out, it
// stays the same.
func assign(members, holders []string) []string {
	n := len(holders)
	owners := make([]string, n)
	if len(members) == 0 {
		return owners
	}
	type pair struct {
		keeps  bool
		score  uint64
		bucket int
		member string
	}
	pairs := make([]pair, 0, n*len(members))
	for bucket, holder := range holders {
		for _, member := range members {
			pairs = append(pairs, pair{member == holder, score(member, bucket), bucket, member})
		}
	}
	slices.SortFunc(pairs, func(x, y pair) int {
		switch {
		case x.keeps && !y.keeps:
			return -1
		case y.keeps && !x.keeps:
			return 1
		}
		return cmp.Or(cmp.Compare(y.score, x.score), cmp.Compare(x.bucket, y.bucket), cmp.Compare(x.member, y.member))
	})
	part, left := n/len(members), n%len(members)
	has := map[string]int{}
	for _, p := range pairs {
		if owners[p.bucket] != "" || has[p.member] > part || has[p.member] == part && left == 0 {
			continue
		}
		if has[p.member] == part {
			left--
		}
		owners[p.bucket] = p.member
		has[p.member]++
	}
	return owners
}

// score returns how well a bucket and a member fit: a number that looks random.
func score(member string, bucket int) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(member + "/" + strconv.Itoa(bucket)))
	// FNV changes the high bits little for the last characters. This is the finalizer of SplitMix64
	// (Steele, Lea and Flood, 2014).
	x := hash.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
