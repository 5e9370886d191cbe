package replay

import (
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// object returns a ConfigMap with a name and a UID.
func object(name, uid string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns",
			Name:      name,
			UID:       types.UID(uid),
			Labels:    map[string]string{"l": "v"},
			Annotations: map[string]string{
				"a": "v",
			},
			OwnerReferences: []metav1.OwnerReference{{Name: "owner"}},
		},
		Data: map[string]string{"content": "secret"},
	}
}

// newRecorder returns a Recorder that records events by the objects' UIDs, and unseen deletions by
// their keys too.
func newRecorder() *testutil.Recorder {
	return &testutil.Recorder{
		KeepLast:  true,
		StoreKeys: true,
		Key: func(object client.Object) string {
			return string(object.GetUID())
		},
	}
}

func nothing(string) bool { return false }

// The next informer delivers the objects that exist. Then the feed emits deletions of the objects
// that are gone, with the fields by which handlers find the owner.
func TestEmitsMissingDeletes(t *testing.T) {
	g := NewWithT(t)
	h := newRecorder()
	f := New(h, &corev1.ConfigMap{}, Options{})
	first := f.Begin()
	for _, name := range []string{"stays", "goes", "is another", "was deleted", "comes"} {
		first.OnAdd(object(name, name), true)
	}
	first.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "ns/was deleted", Obj: object("was deleted", "was deleted")})
	h.Reset()
	f.Pause()
	first.OnAdd(object("late", "late"), false)
	first.OnDelete(object("goes", "goes"))
	g.Expect(h.Reset()).To(BeEmpty(), "the feed drops events of the earlier informer")

	second := f.Begin()
	second.OnAdd(object("stays", "stays"), true)
	second.OnAdd(object("is another", "anew"), true)
	g.Expect(h.Reset()).To(Equal([]string{"add stays", "delete unseen ns/is another is another", "add anew"}))
	// the creation of this object is on the way
	second.EmitMissingDeletes(func(key string) bool { return key == "ns/comes" })
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen ns/goes goes"}))
	g.Expect(h.Last()).
		To(Equal(toolscache.DeletedFinalStateUnknown{
			Key: "ns/goes",
			Obj: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns",
				Name:      "goes",
				UID:       "goes",
				Labels: map[string]string{
					"l": "v",
				},
				OwnerReferences: []metav1.OwnerReference{{Name: "owner"}},
			}},
		}))
	second.EmitMissingDeletes(func(key string) bool { return key == "ns/comes" })
	g.Expect(h.Reset()).To(BeEmpty(), "the feed emits each deletion once")
	second.OnAdd(object("comes", "comes"), true)
	second.EmitMissingDeletes(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"add comes"}))
}

// A deletion of a cluster-scoped object has the key that an informer's store uses.
func TestKeyOfAClusterScopedObject(t *testing.T) {
	g := NewWithT(t)
	h := newRecorder()
	f := New(h, &corev1.Namespace{}, Options{})
	f.Begin().OnAdd(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone", UID: "uid"}}, true)
	h.Reset()
	f.Begin().EmitMissingDeletes(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen gone uid"}))
}

// The record passes from one feed to the next, even if the informer in between delivered nothing.
func TestKnown(t *testing.T) {
	g := NewWithT(t)
	h := newRecorder()
	f := New(h, &corev1.ConfigMap{}, Options{})
	f.Begin().OnAdd(object("a", "a"), true)
	f.Begin()
	known := f.Seen()
	g.Expect(known).To(HaveLen(1))
	g.Expect(known).To(HaveKey(client.ObjectKey{Namespace: "ns", Name: "a"}))
	h.Reset()
	next := New(h, &corev1.ConfigMap{}, Options{Seen: known}).Begin()
	next.EmitMissingDeletes(nothing)
	g.Expect(h.Reset()).To(Equal([]string{"delete unseen ns/a a"}))
}

// The record omits objects that the handler did not receive: Options.Call may skip the handler at
// the last moment.
func TestCallSaysNo(t *testing.T) {
	g := NewWithT(t)
	h := newRecorder()
	closed := false
	f := New(h, &corev1.ConfigMap{}, Options{Call: func(note func() bool, call func()) {
		if !closed && note() {
			call()
		}
	}})
	source := f.Begin()
	source.OnAdd(object("a", "a"), true)
	source.OnAdd(object("b", "b"), true)
	closed = true
	source.OnAdd(object("c", "c"), true)
	source.OnDelete(object("a", "a"))
	g.Expect(h.Reset()).To(Equal([]string{"add a", "add b"}))
	g.Expect(f.Seen()).To(HaveLen(2), "a, whose deletion the handler did not receive, and b")
}

// Only one informer at a time calls a handler that hangs. A superseded informer does not wait for
// the handler.
func TestHandlerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		h := newRecorder()
		h.Hang = make(chan struct{})
		f := New(h, &corev1.ConfigMap{}, Options{})
		first := f.Begin()
		go first.OnAdd(object("a", "a"), true)
		synctest.Wait()
		second := f.Begin()
		ended := make(chan struct{})
		go func() {
			second.OnAdd(object("b", "b"), true)
			close(ended)
		}()
		synctest.Wait()
		third := f.Begin() // supersedes the second informer, which must not wait any more
		<-ended
		go third.OnAdd(object("c", "c"), true)
		synctest.Wait()
		g.Expect(h.Reset()).To(BeEmpty())
		close(h.Hang)
		synctest.Wait()
		g.Expect(h.Reset()).To(Equal([]string{"add a", "add c"}))
		g.Expect(f.Seen()).To(HaveLen(2))
	})
}
