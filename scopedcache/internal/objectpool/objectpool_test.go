package objectpool

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"weak"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

func configMap(uid, version, content string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:            "object",
			UID:             types.UID(uid),
			ResourceVersion: version,
		},
		Data: map[string]string{"content": content},
	}
}

// Objects with equal contents are one object while anyone holds it.
func TestEqualObjects(t *testing.T) {
	g := NewWithT(t)
	p := &Pool{}
	first := configMap("u", "1", "a")
	g.Expect(p.Find(first)).To(BeIdenticalTo(first), "an empty pool")
	g.Expect(p.Hold(first)).To(BeIdenticalTo(first))
	g.Expect(p.Hold(configMap("u", "1", "a"))).To(BeIdenticalTo(first))
	g.Expect(p.Find(configMap("u", "1", "a"))).To(BeIdenticalTo(first))
	p.Release(first)
	g.Expect(p.Hold(configMap("u", "1", "a"))).To(BeIdenticalTo(first))
	p.Release(first)
	p.Release(first)
	g.Expect(p.Len()).To(BeZero())
	p.Release(first) // one too many
	later := configMap("u", "1", "a")
	g.Expect(p.Hold(later)).To(BeIdenticalTo(later))
}

// Whatever differs is not shared: UID, resourceVersion, type, and contents even where UID and
// resourceVersion are equal.
func TestWhatDiffers(t *testing.T) {
	g := NewWithT(t)
	p := &Pool{}
	untyped := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
		"name": "object", "uid": "u", "resourceVersion": "1"}}}
	metadata := &metav1.PartialObjectMetadata{ObjectMeta: configMap("u", "1", "").ObjectMeta}
	different := []any{configMap("u", "1", "a"), configMap("u", "1", "b"), configMap("u", "2", "a"),
		configMap("v", "1", "a"), untyped, metadata}
	for _, object := range different {
		g.Expect(p.Hold(object)).To(BeIdenticalTo(object))
	}
	g.Expect(p.Len()).To(Equal(len(different)))
	g.Expect(p.Hold(configMap("u", "1", "b"))).To(BeIdenticalTo(different[1]))
	g.Expect(p.Hold(untyped.DeepCopy())).To(BeIdenticalTo(untyped))
	p.Release(different[0])
	g.Expect(p.Hold(configMap("u", "1", "b"))).To(BeIdenticalTo(different[1]), "another variant has gone")
}

// An object that no API server has versioned is left alone, and so is what is no object.
func TestWhatIsNotKept(t *testing.T) {
	g := NewWithT(t)
	p := &Pool{}
	for _, object := range []any{configMap("", "1", "a"), configMap("u", "", "a"), "text", nil, 7} {
		for range 2 {
			held := p.Hold(object)
			if pointer, ok := object.(*corev1.ConfigMap); ok {
				g.Expect(held).To(BeIdenticalTo(pointer))
			} else if object != nil {
				g.Expect(held).To(Equal(object))
			}
			p.Release(object)
		}
	}
	g.Expect(p.Len()).To(BeZero())
}

// A server that answers each time with other contents does not fill the pool.
func TestVariantsAreBounded(t *testing.T) {
	g := NewWithT(t)
	p := &Pool{}
	var all []any
	for n := range 3 * maxVariants {
		all = append(all, p.Hold(configMap("u", "1", fmt.Sprint(n))))
	}
	g.Expect(p.Len()).To(Equal(maxVariants))
	for n, object := range all {
		g.Expect(object.(*corev1.ConfigMap).Data["content"]).To(Equal(fmt.Sprint(n)))
		p.Release(object)
	}
	g.Expect(p.Len()).To(BeZero())
}

// Of equal objects that come at the same time one is kept.
func TestFirstHolders(t *testing.T) {
	p := &Pool{}
	for round := range 2000 {
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				object := configMap(fmt.Sprint(round), "1", "a")
				<-begin
				p.Hold(object)
			})
		}
		close(begin)
		wg.Wait()
		NewWithT(t).Expect(p.Len()).To(Equal(round + 1))
	}
}

// The memory of an object is free when its last holder has released it.
func TestMemoryReturns(t *testing.T) {
	g := NewWithT(t)
	p := &Pool{}
	pointer := func() weak.Pointer[corev1.ConfigMap] {
		object := configMap("u", "1", "a")
		p.Hold(object)
		p.Hold(configMap("u", "1", "a"))
		p.Release(object)
		runtime.GC()
		g.Expect(weak.Make(object).Value()).NotTo(BeNil())
		p.Release(object)
		return weak.Make(object)
	}()
	runtime.GC()
	g.Expect(pointer.Value()).To(BeNil())
}

// Many informers that hold and release at the same time never get other contents, and leave
// nothing.
func TestChurn(t *testing.T) {
	g := NewWithT(t)
	p := &Pool{}
	var wg sync.WaitGroup
	for worker := range uint64(8) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(worker, 0))
			var held []any
			for range 2000 {
				if len(held) > 0 && random.IntN(2) == 0 {
					n := random.IntN(len(held))
					p.Release(held[n])
					held[n] = held[len(held)-1]
					held = held[:len(held)-1]
					continue
				}
				want := configMap(fmt.Sprint(random.IntN(3)), fmt.Sprint(random.IntN(2)), fmt.Sprint(random.IntN(3)))
				got := p.Hold(want.DeepCopy())
				if got := got.(*corev1.ConfigMap); got.UID != want.UID || got.ResourceVersion != want.ResourceVersion ||
					got.Data["content"] != want.Data["content"] {
					t.Errorf("held %v, got %v", want, got)
				}
				if len(held)%16 == 0 && p.Len() > 18 {
					t.Errorf("%d objects, and only 18 are different", p.Len())
				}
				held = append(held, got)
			}
			for _, object := range held {
				p.Release(object)
			}
		})
	}
	wg.Wait()
	g.Expect(p.Len()).To(BeZero())
}

// BenchmarkHold measures an object of about 1 KiB that the pool has already.
func BenchmarkHold(b *testing.B) {
	p := &Pool{}
	content := string(make([]byte, 1000))
	p.Hold(configMap("u", "1", content))
	object := configMap("u", "1", string([]byte(content)))
	b.ReportAllocs()
	for b.Loop() {
		p.Release(p.Hold(object))
	}
}
