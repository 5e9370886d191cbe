package replay

import (
	"strconv"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/versions"
)

// The next informer does not repeat a deletion that the handler received, and the record of an
// object is the latest one.
func TestRemembersTheLatest(t *testing.T) {
	g := NewWithT(t)
	h := newRecorder()
	f := New(h, &corev1.ConfigMap{}, Options{})
	first := f.Begin()
	first.OnAdd(object("goes", "1"), true)
	first.OnAdd(object("changes", "1"), true)
	changed := object("changes", "2") // client-go reports a recreation that it did not observe like this
	changed.Labels, changed.ResourceVersion = map[string]string{"l": "new"}, "7"
	first.OnUpdate(object("changes", "1"), changed)
	second := f.Begin()
	h.Reset()
	second.OnAdd(changed, true)
	g.Expect(h.Reset()).To(Equal([]string{"add 2"}), "the object is the one on record")
	second.EmitMissingDeletes(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen ns/goes 1"}))
	known := f.Seen()
	g.Expect(known).To(HaveLen(1), "a deleted object leaves the record")
	g.Expect(known[client.ObjectKey{Namespace: "ns", Name: "changes"}]).To(Equal(Remember(changed)))
	third := New(h, &corev1.ConfigMap{}, Options{Seen: known}).Begin()
	third.EmitMissingDeletes(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen ns/changes 2"}))
}

// versioned returns an object with a resource version.
func versioned(name, uid, version string) *corev1.ConfigMap {
	o := object(name, uid)
	o.ResourceVersion = version
	return o
}

// The feed that takes over delivers what the handler has not received in that version, and nothing
// else. A feed that begins again by itself delivers everything.
func TestHandOver(t *testing.T) {
	g := NewWithT(t)
	h := newRecorder()
	options := Options{Turn: NewTurn()}
	f := New(h, &corev1.ConfigMap{}, options)
	first := f.Begin()
	for i, name := range []string{"same", "changed", "gone", "another", "older"} {
		first.OnAdd(versioned(name, name, strconv.Itoa(10+i)), true)
	}
	first.OnAdd(versioned("deleted", "deleted", "3"), true)
	first.OnDelete(versioned("deleted", "deleted", "20"))
	seen, latest := f.HandOver()
	g.Expect(latest).To(Equal(versions.ByNamespace{"ns": "20"}), "the deletion counts")
	g.Expect(seen.Latest()).To(Equal(versions.ByNamespace{"ns": "14"}))
	g.Expect(seen).To(HaveLen(5))
	h.Reset()
	first.OnAdd(versioned("late", "late", "21"), false)

	options.Seen = seen
	next := New(h, &corev1.ConfigMap{}, options)
	second := next.Begin()
	second.OnAdd(versioned("same", "same", "10"), true)
	second.OnAdd(versioned("changed", "changed", "30"), true)
	second.OnAdd(versioned("another", "anew", "31"), true)
	second.OnAdd(versioned("older", "older", "2"), true)
	second.OnAdd(versioned("new", "new", "32"), true)
	second.EmitMissingDeletes(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"add changed", "delete unseen ns/another another", "add anew", "add new",
		"delete unseen ns/gone gone"}))
	second.OnUpdate(versioned("same", "same", "10"), versioned("same", "same", "33"))
	g.Expect(h.Reset()).To(Equal([]string{"update same"}))

	third := next.Begin() // another informer of the same scope
	third.OnAdd(versioned("same", "same", "33"), true)
	g.Expect(h.Reset()).To(Equal([]string{"add same"}))

	options.Seen = next.Seen() // the next connection
	New(h, &corev1.ConfigMap{}, options).Begin().OnAdd(versioned("same", "same", "33"), true)
	g.Expect(h.Reset()).To(Equal([]string{"add same"}))
}

// Feeds that share a turn call the handler one at a time.
func TestSharedTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		h := newRecorder()
		h.Hang = make(chan struct{})
		options := Options{Turn: NewTurn()}
		one, other := New(h, &corev1.ConfigMap{}, options).Begin(), New(h, &corev1.ConfigMap{}, options)
		second := other.Begin()
		go one.OnAdd(object("a", "a"), true)
		synctest.Wait()
		passed := false
		go func() {
			second.OnAdd(object("b", "b"), true)
			passed = true
		}()
		synctest.Wait()
		g.Expect(passed).To(BeFalse())
		g.Expect(other.Seen()).To(BeEmpty(), "the handler has not received it")
		synctest.Wait()
		g.Expect(passed).To(BeTrue(), "it was superseded and waits no more")
		close(h.Hang)
		synctest.Wait()
		g.Expect(h.Reset()).To(Equal([]string{"add a"}))
	})
}
