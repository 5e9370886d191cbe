package ownwrites

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// behind is an informer that has nothing.
type behind struct {
	Informer
	version string
	since   uint64
}

func (b *behind) ID() uint64                                 { return uint64(len(b.version)) }
func (b *behind) Polls() bool                                { return false }
func (b *behind) Since() uint64                              { return b.since }
func (b *behind) Version() string                            { return b.version }
func (b *behind) Stored(types.NamespacedName) (Object, bool) { return Object{}, false }
func (b *behind) Covers(_, _ string) bool                    { return true }
func (b *behind) HasSelectors() bool                         { return false }
func (b *behind) Selects(labels map[string]string) Selection { return Selected }

func key(n int) types.NamespacedName {
	return types.NamespacedName{Namespace: "a", Name: fmt.Sprint("x-", n)}
}

func wrote(version string) Write {
	return Write{Object: Object{UID: "1", Version: version}, Labels: map[string]string{}}
}

// What all informers have is forgotten, also if nothing is read. Without an informer, nothing is
// remembered.
func TestWritesAreForgotten(t *testing.T) {
	g := NewWithT(t)
	informer := &behind{version: "10"}
	running := []Informer{informer}
	w := New(func(schema.GroupKind) []Informer { return running })
	w.Enable()
	w.Add(exploredKind, key(1), wrote("9"))
	g.Expect(w.Any()).To(BeFalse(), "the informer had it already")
	w.Add(exploredKind, key(1), wrote("11"))
	w.Add(exploredKind, key(2), wrote("12"))
	g.Expect(w.Any()).To(BeTrue())
	informer.version = "12"
	for i := range w.kinds {
		w.kinds[i].checked = w.kinds[i].checked.Add(-forgetInterval)
	}
	w.Add(exploredKind, key(3), wrote("12"))
	g.Expect(w.Any()).To(BeFalse())

	w.Add(exploredKind, key(1), wrote("13"))
	g.Expect(w.Any()).To(BeTrue())
	running = nil
	w.Add(exploredKind, key(2), wrote("14"))
	g.Expect(w.Any()).To(BeFalse(), "the next informer begins with a list that has both")
}

// Reads of other kinds forget what the informers have got, too: nothing may read that kind again.
func TestReadsOfOtherKindsForget(t *testing.T) {
	g := NewWithT(t)
	informer := &behind{version: "10"}
	w := New(func(schema.GroupKind) []Informer { return []Informer{informer} })
	other := schema.GroupKind{Kind: "Other"}
	w.Add(other, key(1), wrote("11"))
	w.Add(exploredKind, key(1), wrote("12"))
	g.Expect(w.Concern(other, key(1))).To(BeTrue())
	g.Expect(w.Concern(other, types.NamespacedName{})).To(BeTrue())
	g.Expect(w.Concern(other, key(2))).To(BeFalse())
	informer.version = "12"
	w.checked = w.checked.Add(-forgetInterval)
	for _, kind := range w.kinds {
		kind.checked = kind.checked.Add(-forgetInterval)
	}
	g.Expect(w.Concern(schema.GroupKind{Kind: "Third"}, key(1))).To(BeFalse())
	g.Expect(w.Any()).To(BeFalse())
}

// Beyond a number of objects, the writes count as one of the whole kind.
func TestWritesAreBounded(t *testing.T) {
	g := NewWithT(t)
	defer func(was int) { maxObjects = was }(maxObjects)
	maxObjects = 10
	informer := &behind{version: "10"}
	w := New(func(schema.GroupKind) []Informer { return []Informer{informer} })
	for n := range 35 {
		w.Add(exploredKind, key(n), wrote(fmt.Sprint(11+n)))
		g.Expect(w.count.Load()).To(BeNumerically("<=", 10))
	}
	required := w.BeforeGet(exploredKind, key(0))
	g.Expect(required.Judge(informer)).To(Equal(Judgement{Ask: true}), "its write is not remembered")
	required.Listed("100", func(types.NamespacedName) (Object, map[string]string, bool) { return Object{}, nil, false })
	informer.version = "100"
	required = w.BeforeGet(exploredKind, key(0))
	g.Expect(required.Judge(informer)).To(Equal(Judgement{Ready: true}))
	w.kinds[exploredKind].checked = w.kinds[exploredKind].checked.Add(-forgetInterval)
	required.Done()
	g.Expect(w.Any()).To(BeFalse())
}

// A write is not forgotten that came while the informers were counted: one that has started since
// then does not have it.
func TestForgetWhileAnInformerStarts(t *testing.T) {
	g := NewWithT(t)
	first, second := &behind{version: "10"}, &behind{version: "5"}
	running := []Informer{first}
	during := func() {}
	w := New(func(schema.GroupKind) []Informer {
		counted := running
		during()
		return counted
	})
	w.Enable()
	w.Add(exploredKind, key(1), wrote("11"))
	during = func() {
		during = func() {}
		second.since = w.Now()
		running = []Informer{first, second}
		w.Add(exploredKind, key(1), wrote("9")) // the first has it
	}
	first.version = "12"
	w.forget(exploredKind, key(1))
	g.Expect(w.BeforeGet(exploredKind, key(1)).Judge(second).Ready).To(BeFalse())
}

// A list of the API server says which version to wait for, so that the next reads need no other
// list.
func TestUnknownEndsWithTheObject(t *testing.T) {
	g := NewWithT(t)
	informer := &behind{version: "10"}
	w := New(func(schema.GroupKind) []Informer { return []Informer{informer} })
	w.Add(exploredKind, key(1), Write{Unknown: true})
	required := w.BeforeGet(exploredKind, key(1))
	g.Expect(required.Judge(informer).Ask).To(BeTrue())
	required.Listed("20", func(types.NamespacedName) (Object, map[string]string, bool) {
		return Object{UID: "1", Version: "12"}, nil, true
	})
	judge := func() Judgement { return w.BeforeGet(exploredKind, key(1)).Judge(informer) }
	g.Expect(judge()).To(Equal(Judgement{Key: key(1), Version: "12"}))
	informer.version = "12"
	g.Expect(judge()).To(Equal(Judgement{Ready: true}))
}

// Later writes do not make a read wait longer.
func TestReadWaitsForEarlierWritesOnly(t *testing.T) {
	g := NewWithT(t)
	informer := &behind{version: "10"}
	w := New(func(schema.GroupKind) []Informer { return []Informer{informer} })
	w.Add(exploredKind, key(1), wrote("11"))
	list, get := w.BeforeList(exploredKind, "a", ""), w.BeforeGet(exploredKind, key(1))
	other := w.BeforeList(exploredKind, "b", "")
	w.Add(exploredKind, key(1), wrote("12"))
	w.Add(exploredKind, key(2), wrote("13"))
	informer.version = "11"
	g.Expect(list.Judge(informer).Ready).To(BeTrue())
	g.Expect(get.Judge(informer).Ready).To(BeTrue())
	g.Expect(other.Judge(informer).Ready).To(BeTrue(), "another namespace")
	g.Expect(w.BeforeList(exploredKind, "", "").Judge(informer).Ready).To(BeFalse())
	g.Expect(w.BeforeList(exploredKind, "a", "x-2").Judge(informer).Version).To(Equal("13"))
}

// Versions that cannot be compared make nothing wait.
func TestVersionsThatCannotBeCompared(t *testing.T) {
	g := NewWithT(t)
	informer := &behind{version: "10"}
	w := New(func(schema.GroupKind) []Informer { return []Informer{informer} })
	w.Add(exploredKind, key(1), wrote("abc"))
	g.Expect(w.BeforeGet(exploredKind, key(1)).Judge(informer).Ready).To(BeTrue())
}

// Answers to deletions are read in the encodings of API servers.
func TestReadDeletion(t *testing.T) {
	g := NewWithT(t)
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Details:  &metav1.StatusDetails{UID: "7"},
	}
	object := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "8", ResourceVersion: "9"}}
	encode := func(kind string, raw []byte, err error) []byte {
		g.Expect(err).NotTo(HaveOccurred())
		envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: raw}
		text, err := envelope.Marshal()
		g.Expect(err).NotTo(HaveOccurred())
		return append([]byte("k8s\x00"), text...)
	}
	statusText, err := status.Marshal()
	statusAnswer := encode("Status", statusText, err)
	objectText, err := object.Marshal()
	objectAnswer := encode("ConfigMap", objectText, err)
	for _, answer := range [][]byte{
		[]byte(`{"kind":"Status","apiVersion":"v1","status":"Success","details":{"uid":"7"}}`),
		statusAnswer,
	} {
		d, ok := readDeletion(answer)
		g.Expect(ok && d.isStatus()).To(BeTrue())
		g.Expect(d.Details.UID).To(BeEquivalentTo("7"))
	}
	for _, answer := range [][]byte{
		[]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"uid":"8","resourceVersion":"9"}}`),
		objectAnswer,
	} {
		d, ok := readDeletion(answer)
		g.Expect(ok && !d.isStatus()).To(BeTrue())
		g.Expect([]string{string(d.Metadata.UID), d.Metadata.ResourceVersion}).To(Equal([]string{"8", "9"}))
	}
	for _, answer := range []string{"", "{}", "<html>", "k8s\x00zzz"} {
		_, ok := readDeletion([]byte(answer))
		g.Expect(ok).To(BeFalse(), "%q", answer)
	}
}

// arriving is an informer that receives the object after a look at its store.
type arriving struct{ behind }

func (a *arriving) Stored(types.NamespacedName) (Object, bool) {
	has := a.version == "11"
	a.version = "11"
	return Object{UID: "1", Version: "11"}, has
}

// An event between two looks does not make a deletion count as seen: the informer has the object.
func TestEventDuringAJudgement(t *testing.T) {
	g := NewWithT(t)
	informer := &arriving{behind{version: "10"}}
	w := New(func(schema.GroupKind) []Informer { return []Informer{&behind{version: "10"}} })
	w.Add(exploredKind, key(1), Write{Object: Object{UID: "1", Version: "11"}, Gone: true})
	g.Expect(w.BeforeGet(exploredKind, key(1)).Judge(informer)).To(Equal(Judgement{Key: key(1)}))
}
