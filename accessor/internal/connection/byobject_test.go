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
