package merge

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	key   = client.ObjectKey{Namespace: "ns", Name: "red"}
	begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// at returns a time some seconds after the beginning.
func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

func newView() *View[string] {
	v := New[string](Times{Silence: 5 * time.Second, Forget: time.Minute})
	v.Hear("a", begin)
	v.Hear("b", begin)
	v.Members(nil)
	return v
}

func row(uid string, term int64, text string) Row[string] {
	return Row[string]{UID: types.UID(uid), Term: term, Row: text}
}

// shows returns the kind and the replica that are shown, and what it says.
func shows(v *View[string], now time.Time) []any {
	choice, text := v.Show(key, now)
	return []any{choice.Kind, choice.Replica, text}
}

// An extension moves: the later term is shown, in whichever order the news arrives.
func TestMoves(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	g.Expect(shows(v, begin)).To(Equal([]any{Absent, "", ""}))
	v.Know(key, "uid")
	g.Expect(shows(v, begin)).To(Equal([]any{Unclaimed, "", ""}))
	v.Claim("a", key, row("uid", 3, "one"))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "a", "one"}))
	v.Claim("b", key, row("uid", 4, "two")) // before a says that it gave it up
	choice, _ := v.Show(key, begin)
	g.Expect(choice).To(Equal(Choice{Kind: Held, Replica: "b", Term: 4, UID: "uid", Contested: true}))
	g.Expect(v.Claimants(key)).To(Equal([]string{"a", "b"}))
	v.Unclaim("a", key)
	choice, _ = v.Show(key, begin)
	g.Expect(choice.Contested).To(BeFalse())
	v.Claim("a", key, row("uid", 3, "late"))
	v.Unclaim("b", key)
	g.Expect(shows(v, begin)).To(Equal([]any{Unclaimed, "", ""}), "a lower term does not follow")
	v.Claim("a", key, row("uid", 5, "three"))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "a", "three"}))
	v.Unclaim("a", key)
	v.Gone(key)
	g.Expect(shows(v, begin)).To(Equal([]any{Absent, "", ""}))
	g.Expect(v.extensions).To(BeEmpty(), "what is gone leaves nothing")
}

// Without terms, the later of two claims is shown.
func TestWithoutTerms(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Know(key, "uid")
	v.Claim("b", key, row("uid", 0, "one"))
	v.Claim("a", key, row("uid", 0, "two"))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "a", "two"}))
	v.Claim("b", key, row("uid", 0, "one, again"))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "a", "two"}), "the same claim is no later one")
}

// A replica that is silent is shown with what it said, until it is heard, another one has the
// extension, or its lease has expired.
func TestSilence(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Know(key, "uid")
	v.Claim("a", key, row("uid", 1, "one"))
	v.Hear("b", at(5))
	g.Expect(v.Tick(at(5))).To(BeEmpty())
	v.Hear("b", at(6))
	g.Expect(v.Tick(at(6))).To(Equal([]client.ObjectKey{key}))
	g.Expect(shows(v, at(6))).To(Equal([]any{Silent, "a", "one"}))
	heardAt, heard := v.HeardAt("a")
	g.Expect(heardAt).To(Equal(begin))
	g.Expect(heard).To(BeFalse())
	g.Expect(v.Hear("a", at(7))).To(Equal([]client.ObjectKey{key}))
	g.Expect(shows(v, at(7))).To(Equal([]any{Held, "a", "one"}))

	v.Hear("b", at(20))
	v.Tick(at(20))
	v.Claim("b", key, row("uid", 2, "two"))
	g.Expect(shows(v, at(20))).To(Equal([]any{Held, "b", "two"}))
	v.Unclaim("b", key)
	g.Expect(shows(v, at(20))).To(Equal([]any{Unclaimed, "", ""}), "not what was before")
	g.Expect(v.Forget("a")).To(Equal([]client.ObjectKey{key}))
	g.Expect(v.Replicas()).To(Equal([]string{"b"}))
	_, heard = v.HeardAt("a")
	g.Expect(heard).To(BeFalse())
	g.Expect(v.Forget("c")).To(BeEmpty(), "who was never seen")
}

// Claims of an extension that was deleted count for nothing, also if the replica is not heard; and
// those of one that is not known here yet count.
func TestRecreated(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Claim("a", key, row("old", 9, "one"))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "a", "one"}))
	v.Know(key, "new")
	g.Expect(shows(v, begin)).To(Equal([]any{Unclaimed, "", ""}))
	v.Claim("b", key, row("new", 1, "two"))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "b", "two"}), "the term of the old one does not count")
	v.Tick(at(6))
	v.Unclaim("a", key)
	v.Gone(key)
	g.Expect(shows(v, at(6))).To(Equal([]any{Absent, "", ""}))
}

// When a Lease is deleted, terms begin anew: the old one is forgotten after a minute.
func TestForgottenTerm(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Know(key, "uid")
	v.Claim("a", key, row("uid", 7, "one"))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "a", "one"}))
	v.Claim("a", key, row("uid", 1, "two"))
	choice, _ := v.Show(key, begin)
	g.Expect(choice.Kind).To(Equal(Unclaimed))
	g.Expect(choice.Late).To(BeTrue())
	v.Hear("a", at(60))
	g.Expect(v.Tick(at(60))).To(BeEmpty())
	v.Hear("a", at(61))
	g.Expect(v.Tick(at(61))).To(Equal([]client.ObjectKey{key}))
	g.Expect(shows(v, at(61))).To(Equal([]any{Held, "a", "two"}))
}

// What no replica has that is heard, one may have that is not: one that was never heard, or has
// become silent, or was forgotten and is still there.
func TestUnheardMembers(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	other := client.ObjectKey{Name: "other"}
	v.Know(key, "uid")
	v.Know(other, "uid-2")
	v.Claim("a", other, row("uid-2", 1, "one"))
	v.Show(other, begin)
	v.met = false
	shows := func(want Kind, unheard ...string) {
		t.Helper()
		choice, text := v.Show(key, begin)
		g.Expect(choice).To(Equal(Choice{Kind: want, UID: "uid"}))
		g.Expect(text).To(BeEmpty())
		g.Expect(v.Unheard()).To(HaveExactElements(unheard))
		choice, _ = v.Show(other, begin)
		g.Expect(choice.Kind).To(Equal(Held))
		choice, _ = v.Show(client.ObjectKey{Name: "none"}, begin)
		g.Expect(choice.Kind).To(Equal(Absent))
	}
	shows(Unsure)
	g.Expect(v.Members([]string{"b", "a"})).To(Equal([]client.ObjectKey{key}))
	shows(Unclaimed)
	g.Expect(v.Members([]string{"d", "b", "a", "c"})).To(Equal([]client.ObjectKey{key}))
	shows(Unsure, "c", "d")
	g.Expect(v.Hear("c", at(1))).To(Equal([]client.ObjectKey{key}))
	shows(Unsure, "d")
	g.Expect(v.Hear("d", at(1))).To(Equal([]client.ObjectKey{key}))
	shows(Unclaimed)
	v.Hear("a", at(6))
	v.Hear("c", at(6))
	v.Hear("d", at(6))
	g.Expect(v.Tick(at(6))).To(Equal([]client.ObjectKey{key}))
	shows(Unsure, "b")
	g.Expect(v.Forget("d")).To(Equal([]client.ObjectKey{key}))
	shows(Unsure, "b", "d")
	g.Expect(v.Members([]string{"a", "c"})).To(Equal([]client.ObjectKey{key}))
	shows(Unclaimed)
	v.Members([]string{"a", "b"})
	v.Claim("c", key, row("uid", 3, "two"))
	choice, _ := v.Show(key, begin)
	g.Expect(choice.Kind).To(Equal(Held))
	g.Expect(v.Members(nil)).To(BeEmpty(), "it does not depend on them")
	v.Unclaim("c", key)
	v.Show(key, begin)
	v.Gone(key)
	v.Show(key, begin)
	g.Expect(v.Members([]string{"d"})).To(BeEmpty())
}

// A replica that was not heard out is taken for one that is not heard, until a later question was
// answered, or what it said is forgotten.
func TestDoubts(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Members([]string{"a", "b", "c"})
	v.Hear("c", begin)
	other := client.ObjectKey{Name: "other"}
	v.Know(key, "uid")
	v.Claim("a", key, row("uid", 1, "one"))
	v.Know(other, "uid-2")
	shown := func(want Kind, others Kind) {
		t.Helper()
		g.Expect(shows(v, begin)).To(Equal([]any{want, "a", "one"}))
		choice, _ := v.Show(other, begin)
		g.Expect(choice.Kind).To(Equal(others))
	}
	shown(Held, Unclaimed)
	g.Expect(v.HeardOut("a", at(1), true)).To(BeEmpty())
	g.Expect(v.HeardOut("a", at(2), false)).To(ConsistOf(key, other))
	shown(Silent, Unsure)
	g.Expect(v.Unheard()).To(Equal([]string{"a"}))
	since, doubted := v.DoubtedSince("a")
	g.Expect([]any{since, doubted}).To(Equal([]any{at(2), true}))
	_, heard := v.HeardAt("a")
	g.Expect(heard).To(BeTrue())
	g.Expect(v.Hear("a", at(3))).To(BeEmpty())
	shown(Silent, Unsure)
	g.Expect(v.HeardOut("a", at(4), false)).To(BeEmpty())
	g.Expect(v.HeardOut("a", at(3), false)).To(BeEmpty())
	g.Expect(v.HeardOut("a", at(4), true)).To(BeEmpty(), "what was asked before is no answer")
	shown(Silent, Unsure)
	g.Expect(v.HeardOut("a", at(5), true)).To(ConsistOf(key, other))
	shown(Held, Unclaimed)

	g.Expect(v.Met(at(6), false)).To(ConsistOf(other))
	g.Expect(v.Met(at(7), false)).To(BeEmpty())
	shown(Held, Unsure)
	v.HeardOut("a", at(6), false)
	shown(Silent, Unsure)
	replicas, members := v.Doubts()
	g.Expect([]any{replicas, members}).To(Equal([]any{[]string{"a"}, true}))
	g.Expect(v.Met(at(6), true)).To(BeEmpty())
	g.Expect(v.Met(at(8), true)).To(ConsistOf(other))
	v.Met(at(9), false)
	g.Expect(v.Settle()).To(ContainElements(key, other))
	shown(Held, Unclaimed)
	replicas, members = v.Doubts()
	g.Expect(replicas).To(BeEmpty())
	g.Expect(members).To(BeFalse())
	g.Expect(v.Settle()).To(BeEmpty())

	// It has just become silent: what it has may not be shown yet.
	for _, name := range []string{"b", "c"} {
		v.Hear(name, at(16))
	}
	v.Tick(at(16))
	g.Expect(v.HeardOut("a", at(9), false)).To(ConsistOf(key, other))
	v.Hear("a", at(16))
	v.HeardOut("a", at(10), true)
	shown(Held, Unclaimed)

	// One that is followed anew comes with what it has then. One that is not known is not doubted.
	v.HeardOut("a", at(10), false)
	v.HeardOut("c", at(10), false)
	v.HeardOut("d", at(10), false)
	replicas, _ = v.Doubts()
	g.Expect(replicas).To(Equal([]string{"a", "c"}))
	v.Forget("a")
	v.Members([]string{"a", "b"})
	v.Forget("c")
	replicas, _ = v.Doubts()
	g.Expect(replicas).To(BeEmpty())
	v.Claim("a", key, row("uid", 1, "one"))
	v.Hear("a", at(11))
	shown(Held, Unclaimed)
	v.Members([]string{"a", "b", "e"})
	v.HeardOut("e", at(12), false) // it was listed before it was asked, and arrives later
	v.Hear("e", at(13))
	shown(Held, Unsure)
	g.Expect(v.HeardOut("e", at(14), true)).To(ConsistOf(other))
	shown(Held, Unclaimed)
	v.Members([]string{"a", "b", "g"})
	v.HeardOut("g", at(15), false)
	v.Members([]string{"a", "b"})
	v.Members([]string{"a", "b", "g"})
	v.Hear("g", at(16))
	shown(Held, Unclaimed)
}

// While a replica is in doubt, an earlier claim of another one is not believed, a later one is, and
// two that claim it still contest it.
func TestClaimsInDoubt(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Know(key, "uid")
	v.HeardOut("a", at(1), false)
	v.Claim("a", key, row("uid", 5, "one"))
	v.Claim("b", key, row("uid", 4, "two"))
	choice, _ := v.Show(key, begin)
	g.Expect(choice).To(Equal(Choice{Kind: Silent, Replica: "a", Term: 5, UID: "uid", Contested: true, Late: true}))
	v.Claim("b", key, row("uid", 6, "three"))
	choice, _ = v.Show(key, begin)
	g.Expect(choice).To(Equal(Choice{Kind: Held, Replica: "b", Term: 6, UID: "uid", Contested: true}))

	v = newView() // without terms the later claim is shown of those that are not in doubt
	v.Know(key, "uid")
	v.HeardOut("a", at(1), false)
	v.Claim("b", key, row("uid", 0, "two"))
	v.Claim("a", key, row("uid", 0, "one"))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "b", "two"}))
}

// A list replaces what a replica said before.
func TestReplace(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	other := client.ObjectKey{Name: "other"}
	v.Know(key, "uid")
	v.Claim("a", key, row("uid", 1, "one"))
	v.Claim("a", other, row("uid-2", 1, "two"))
	g.Expect(v.Replace("a", map[client.ObjectKey]Row[string]{key: row("uid", 1, "again")})).To(ConsistOf(key, other))
	g.Expect(shows(v, begin)).To(Equal([]any{Held, "a", "again"}))
	choice, _ := v.Show(other, begin)
	g.Expect(choice.Kind).To(Equal(Absent))
}

// What was shown is not followed by a lower term, also when no replica claimed it in between, and
// when what was shown was only listed by a replica that is not heard.
func TestTermsOutliveClaims(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Know(key, "uid")
	v.Claim("a", key, row("uid", 5, "one"))
	v.Show(key, begin)
	v.Unclaim("a", key)
	v.Show(key, begin)
	v.Claim("b", key, row("uid", 4, "late"))
	choice, _ := v.Show(key, begin)
	g.Expect(choice.Kind).To(Equal(Unclaimed))

	v = newView()
	v.Know(key, "uid")
	v.Claim("c", key, row("uid", 9, "listed, and not heard"))
	choice, _ = v.Show(key, begin)
	g.Expect(choice.Kind).To(Equal(Silent))
	v.Forget("c")
	v.Claim("b", key, row("uid", 8, "late"))
	choice, _ = v.Show(key, begin)
	g.Expect(choice.Kind).To(Equal(Unclaimed))
}

// A term is forgotten a minute after it was last claimed, however often the extension is shown
// meanwhile, and whatever was late before.
func TestForgottenInTime(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Know(key, "uid")
	v.Claim("a", key, row("uid", 7, "one"))
	v.Show(key, begin)
	for second := range 62 {
		v.Hear("a", at(second))
		v.Claim("a", key, row("uid", 1, "two"))
		v.Tick(at(second))
		v.Show(key, at(second))
	}
	choice, _ := v.Show(key, at(62))
	g.Expect(choice.Kind).To(Equal(Held))

	v = newView()
	v.Know(key, "uid")
	v.Claim("a", key, row("uid", 7, "one"))
	v.Show(key, begin)
	v.Unclaim("a", key)
	v.Claim("b", key, row("uid", 6, "late"))
	v.Show(key, begin) // late from now on
	v.Claim("a", key, row("uid", 7, "one"))
	v.Show(key, at(1)) // and not any more
	v.Unclaim("a", key)
	v.Unclaim("b", key)
	v.Show(key, at(59))
	v.Hear("b", at(61))
	v.Tick(at(61))
	v.Claim("b", key, row("uid", 6, "late"))
	choice, _ = v.Show(key, at(61))
	g.Expect(choice.Kind).To(Equal(Unclaimed))
}

// Replicas that are not heard contest nothing.
func TestSilentDoNotContest(t *testing.T) {
	g := NewWithT(t)
	v := newView()
	v.Know(key, "uid")
	v.Claim("c", key, row("uid", 3, "silent"))
	v.Claim("b", key, row("uid", 4, "two"))
	choice, _ := v.Show(key, begin)
	g.Expect(choice.Contested).To(BeFalse())
	v.Hear("b", begin)
	v.Hear("c", begin)
	choice, _ = v.Show(key, begin)
	g.Expect(choice.Contested).To(BeTrue())
}
