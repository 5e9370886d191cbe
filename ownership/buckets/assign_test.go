package buckets

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// The buckets are ranges that Kubernetes' sharded list and watch can select.
func TestBucketsAreShardRanges(t *testing.T) {
	g := NewWithT(t)
	for _, n := range []int{1, 2, 16, 64} {
		hits := make([]int, n)
		for range 2000 {
			object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uuid.NewUUID()}}
			bucket := bucketOf(object.UID, n)
			width := ^uint64(0)/uint64(n) + 1 // 0 for one bucket, whose range is everything
			end := fmt.Sprintf("0x%016x", uint64(bucket+1)*width)
			if bucket == n-1 {
				end = "0x10000000000000000"
			}
			selector := sharding.NewSelector(sharding.ShardRangeRequirement{
				Key:   "object.metadata.uid",
				Start: fmt.Sprintf("0x%016x", uint64(bucket)*width),
				End:   end,
			})
			g.Expect(selector.Matches(object)).To(BeTrue(), "%s in %s", object.UID, selector)
			hits[bucket]++
		}
		g.Expect(slices.Min(hits)).To(BeNumerically(">", 2000/n/4), "%d buckets", n)
	}
	g.Expect(bucketOf(types.UID(""), 8)).To(BeNumerically("<", 8))
}

func names(prefix string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("%s_%d", prefix, i))
	}
	return list
}

func moved(before, after []string) (n int) {
	for i := range before {
		if before[i] != after[i] {
			n++
		}
	}
	return n
}

func TestAssign(t *testing.T) {
	g := NewWithT(t)
	none := make([]string, 64)
	g.Expect(assign(nil, none)).To(Equal(none))
	members := names("a", 3)
	g.Expect(assign(members, none)).To(Equal(assign([]string{"a_2", "a_0", "a_1"}, none)), "the order of the members")
	for run := range 100 {
		sizes := []int{1, 2, 3, 4, 9, 4, 5, 3, 1, 3}
		if run%25 == 0 {
			sizes = append(sizes, 40, 25)
		}
		holders := none
		for _, size := range sizes {
			members := names(fmt.Sprint("run", run), size)
			owners := assign(members, holders)
			held := map[string]int{}
			for _, owner := range owners {
				held[owner]++
			}
			g.Expect(held).To(HaveLen(size))
			g.Expect(held).NotTo(HaveKey(""))
			for owner, n := range held {
				g.Expect(n).To(BeElementOf(64/size, (64+size-1)/size), "buckets of %s, one of %d", owner, size)
			}
			if size == 4 && slices.Contains(holders, members[2]) && !slices.Contains(holders, members[3]) {
				g.Expect(moved(holders, owners)).To(BeNumerically("<=", 16), "a fourth member joins")
			}
			// in whatever order it is carried out, the result stays
			for _, bucket := range rand.Perm(64) {
				if holders[bucket] == owners[bucket] {
					continue
				}
				for _, holder := range []string{"", owners[bucket]} {
					holders = slices.Clone(holders)
					holders[bucket] = holder
					g.Expect(assign(members, holders)).To(Equal(owners))
				}
			}
		}
	}
}
