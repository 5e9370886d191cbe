package connection

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// A connection's own options come first. What they leave open is that of every connection, also if
// another object stands for the kind.
func TestByObject(t *testing.T) {
	g := NewWithT(t)
	every, one := labels.SelectorFromSet(labels.Set{"every": ""}), labels.SelectorFromSet(labels.Set{"one": ""})
	period, yes := time.Hour, true
	transform := func(object any) (any, error) { return object, nil }
	no, minute := false, time.Minute
	mark := func(object any) (any, error) { return "one", nil }
	full := cache.ByObject{
		Label:                 one,
		Field:                 fields.Nothing(),
		Transform:             mark,
		SyncPeriod:            &minute,
		UnsafeDisableDeepCopy: &no,
		EnableWatchBookmarks:  &no,
	}
	merged, err := byObject(map[client.Object]cache.ByObject{
		&corev1.Secret{}: {
			Label:                 every,
			Field:                 fields.Everything(),
			Transform:             transform,
			SyncPeriod:            &period,
			UnsafeDisableDeepCopy: &yes,
			EnableWatchBookmarks:  &yes,
		},
		&corev1.Pod{}: {Label: every},
		&corev1.Service{}: {
			Label:                 every,
			Field:                 fields.Everything(),
			Transform:             transform,
			SyncPeriod:            &period,
			UnsafeDisableDeepCopy: &yes,
			EnableWatchBookmarks:  &yes,
		},
	}, map[client.Object]cache.ByObject{
		&corev1.Secret{}:    {Label: one},
		&corev1.ConfigMap{}: {Label: one},
		&corev1.Service{}:   full,
	}, scheme.Scheme)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(merged).To(HaveLen(4))
	for object, settings := range merged {
		switch object.(type) {
		case *corev1.Secret:
			g.Expect(settings.Label).To(Equal(one))
			g.Expect(settings.Field).To(Equal(fields.Everything()))
			g.Expect(settings.Transform).NotTo(BeNil())
			g.Expect(settings.SyncPeriod).To(Equal(&period))
			g.Expect(settings.UnsafeDisableDeepCopy).To(Equal(&yes))
			g.Expect(settings.EnableWatchBookmarks).To(Equal(&yes))
		case *corev1.Service:
			marked, err := settings.Transform(nil)
			g.Expect(marked, err).To(Equal("one"))
			settings.Transform = nil
			full.Transform = nil
			g.Expect(settings).To(Equal(full), "all of it is the connection's own")
		case *corev1.Pod:
			g.Expect(settings).To(Equal(cache.ByObject{Label: every}))
		default:
			g.Expect(settings).To(Equal(cache.ByObject{Label: one}))
		}
	}
}

// What a connection's options say of a kind comes before what every connection's say of its
// namespaces: another label would show it the objects of another extension.
func TestNamespacesOfByObject(t *testing.T) {
	g := NewWithT(t)
	every, one := labels.SelectorFromSet(labels.Set{"every": ""}), labels.SelectorFromSet(labels.Set{"one": ""})
	yes, period := true, time.Hour
	transform := func(object any) (any, error) { return object, nil }
	all := cache.Config{
		LabelSelector:         every,
		FieldSelector:         fields.Everything(),
		Transform:             transform,
		UnsafeDisableDeepCopy: &yes,
		EnableWatchBookmarks:  &yes,
		SyncPeriod:            &period,
	}
	of := map[client.Object]cache.ByObject{&corev1.Secret{}: {Namespaces: map[string]cache.Config{"a": all}}}
	merge := func(own cache.ByObject) cache.ByObject {
		merged, err := byObject(of, map[client.Object]cache.ByObject{&corev1.Secret{}: own}, scheme.Scheme)
		g.Expect(err).NotTo(HaveOccurred())
		for _, settings := range merged {
			return settings
		}
		return cache.ByObject{}
	}
	labelled := merge(cache.ByObject{Label: one}).Namespaces["a"]
	g.Expect(labelled.LabelSelector).To(Equal(one))
	g.Expect(labelled.Transform).NotTo(BeNil())
	no, minute := false, time.Minute
	mark := func(any) (any, error) { return "one", nil }
	whole := merge(cache.ByObject{
		Label:                 one,
		Field:                 fields.Nothing(),
		Transform:             mark,
		UnsafeDisableDeepCopy: &no,
		EnableWatchBookmarks:  &no,
		SyncPeriod:            &minute,
	}).Namespaces["a"]
	g.Expect(whole.Transform(nil)).To(Equal("one"))
	whole.Transform = nil
	g.Expect(whole).To(Equal(cache.Config{
		LabelSelector:         one,
		FieldSelector:         fields.Nothing(),
		UnsafeDisableDeepCopy: &no,
		EnableWatchBookmarks:  &no,
		SyncPeriod:            &minute,
	}))
	g.Expect(merge(cache.ByObject{Namespaces: map[string]cache.Config{"b": {}}}).Namespaces).
		To(Equal(map[string]cache.Config{"b": {}}))
	for _, settings := range of {
		g.Expect(settings.Namespaces["a"].LabelSelector).To(Equal(every), "the common options stay")
	}
	sets, err := namespacesOf(of, scheme.Scheme)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sets).To(HaveLen(1))
	g.Expect(sets[corev1.SchemeGroupVersion.WithKind("Secret")].Names()).To(Equal([]string{"a"}))
	g.Expect(isOfAll(scopedcache.Scope{})).To(BeTrue())
	g.Expect(isOfAll(scopedcache.Scope{LabelSelector: one, Namespaces: scopedcache.WhereverAllowed()})).To(BeTrue())
	g.Expect(isOfAll(scopedcache.Scope{Namespace: "a"})).To(BeFalse())
	g.Expect(isOfAll(scopedcache.Scope{Namespaces: scopedcache.InNamespaces("a")})).To(BeFalse())
	g.Expect(isOfAll(scopedcache.Scope{Namespaces: scopedcache.NamespacesWithLabels(one)})).To(BeFalse())
}
