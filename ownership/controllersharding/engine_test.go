package controllersharding

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

func newEngine(t *testing.T) *Engine {
	t.Helper()
	e, err := New(&rest.Config{}, Options{Ring: "ring", Shard: "me", Namespace: "n"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return e
}

func TestOptions(t *testing.T) {
	for wrong, o := range map[string]Options{
		"Options.Ring":            {Shard: "a", Namespace: "n"},
		`Options.Ring "a/b"`:      {Ring: "a/b", Shard: "a", Namespace: "n"},
		`Options.Shard "A"`:       {Ring: "r", Shard: "A", Namespace: "n"},
		"at most 63 characters":   {Ring: "r", Shard: string(make([]byte, 64)), Namespace: "n"},
		"Options.Namespace must":  {Ring: "r", Shard: "a"},
		"Options.LeaseDuration":   {Ring: "r", Shard: "a", Namespace: "n", LeaseDuration: 1},
		"must be a second":        {Ring: "r", Shard: "a", Namespace: "n", RetryPeriod: 1},
		"less than LeaseDuration": {Ring: "r", Shard: "a", Namespace: "n", RenewDeadline: 1 << 40},
	} {
		_, err := New(&rest.Config{}, o)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(wrong)))
	}
}

// An extension is this shard's if its label says so, the Lease is held, and it is not to be given
// up.
func TestOwns(t *testing.T) {
	g := NewWithT(t)
	e := newEngine(t)
	g.Expect(e.Check(schema.GroupKind{Kind: "X"}, false)).To(MatchError(ContainSubstring("cluster-scoped")))
	g.Expect(e.Check(schema.GroupKind{Kind: "X"}, true)).To(Succeed())
	g.Expect(e.Check(schema.GroupKind{Kind: "X"}, true)).To(MatchError(ContainSubstring("one ClusterCache")))
	with := func(set map[string]string) client.Object {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: set, UID: "u", ResourceVersion: "1"}}
	}
	const shard, drain = ShardLabelPrefix + "ring", DrainLabelPrefix + "ring"
	mine := with(map[string]string{shard: "me"})
	owns := func(object client.Object) bool { _, owned := e.Owns(object); return owned }
	g.Expect(owns(mine)).To(BeFalse(), "without the Lease")
	lease, f := testutil.NewLease()
	defer lease.Release()
	lease.Renew(3600)
	e.term.Store(f.Term())
	g.Expect(owns(mine)).To(BeFalse(), "it was not listed since")
	e.listed.Store(&listing{version: "5", versions: map[types.UID]string{"u": "1"}})
	got, owned := e.Owns(mine)
	g.Expect(owned).To(BeTrue())
	g.Expect(got).To(BeIdenticalTo(f.Term()))
	g.Expect(owns(with(nil))).To(BeFalse())
	g.Expect(owns(with(map[string]string{shard: "other"}))).To(BeFalse())
	g.Expect(owns(with(map[string]string{shard: "other", drain: "true"}))).To(BeFalse())
	g.Expect(owns(with(map[string]string{shard + "2": "me"}))).To(BeFalse(), "another ring")
	g.Expect(e.drains.Len()).To(BeZero())
	g.Expect(owns(with(map[string]string{shard: "me", drain: ""}))).To(BeFalse(), "any value counts")
	later := with(map[string]string{shard: "me", drain: "true"})
	later.SetResourceVersion("2")
	g.Expect(owns(later)).To(BeFalse())
	g.Expect(e.drains.Len()).To(Equal(1), "it is to be given up, in its last version")
	last, _ := e.last("u")
	g.Expect(last.resourceVersion).To(Equal("2"))
	g.Expect(owns(mine)).To(BeFalse(), "an earlier version")
	e.forgetOthers()
	_, ok := e.last("u")
	g.Expect(ok).To(BeTrue())
	e.draining["moved"] = e.draining["u"]
	e.forgetOthers()
	g.Expect(e.draining).NotTo(HaveKey(types.UID("moved")))
	mine.SetResourceVersion("3")
	g.Expect(owns(mine)).To(BeTrue())
	_, ok = e.last("u")
	g.Expect(ok).To(BeFalse(), "it is not to be given up any more")
	g.Expect(e.Selector().Matches(labels.Set{shard: "me", drain: "true"})).To(BeTrue())
	g.Expect(e.Selector().Matches(labels.Set{shard: "other"})).To(BeFalse())
}

// What a late cache has is not this shard's if the API server does not say so.
func TestListing(t *testing.T) {
	g := NewWithT(t)
	l := &listing{version: "100", versions: map[types.UID]string{"mine": "50"}}
	confirms := func(uid types.UID, version string) bool {
		return l.confirms(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: version}})
	}
	g.Expect(confirms("mine", "50")).To(BeTrue())
	g.Expect(confirms("mine", "49")).To(BeFalse(), "it was another shard's in between, perhaps")
	g.Expect(confirms("mine", "101")).To(BeTrue())
	g.Expect(confirms("moved", "99")).To(BeFalse())
	g.Expect(confirms("moved", "100")).To(BeFalse())
	g.Expect(confirms("moved", "101")).To(BeTrue(), "it came back after the list")
	g.Expect(confirms("mine", "x")).To(BeTrue(), "versions without an order")
}
