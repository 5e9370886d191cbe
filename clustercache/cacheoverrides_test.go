package clustercache

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// named is a resolver that resolves to the name of the object.
type named struct {
	identity.Resolver
	err error
}

func (n named) Resolve(_ context.Context, object client.Object) (identity.Resolution, error) {
	reference := identity.Reference{Name: object.GetName()}
	return identity.Resolution{Key: object.GetName(), Source: "source", Reference: reference}, n.err
}

func (n named) Forget(client.ObjectKey) {}

func (n named) Reference(object client.Object) (identity.Reference, error) {
	return identity.Reference{Name: object.GetName()}, n.err
}

// The version of an extension's options is part of what a connection is for.
func TestOverrides(t *testing.T) {
	g := NewWithT(t)
	byObject := map[client.Object]cache.ByObject{&corev1.Secret{}: {Label: labels.SelectorFromSet(labels.Set{"a": "b"})}}
	resolver := withOverrides(named{}, scheme.Scheme, nil, func(extension client.Object) CacheOverrides {
		if extension.GetName() == "plain" {
			return CacheOverrides{}
		}
		return CacheOverrides{Version: extension.GetLabels()["version"], ByObject: byObject}
	})
	extension := func(name, version string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"version": version}}}
	}
	resolve := func(name, version string) identity.Resolution {
		resolution, err := resolver.Resolve(t.Context(), extension(name, version))
		g.Expect(err).NotTo(HaveOccurred())
		reference, err := resolver.Reference(extension(name, version))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reference).To(Equal(resolution.Reference))
		return resolution
	}
	plain := resolve("plain", "1")
	g.Expect(plain.Key).To(Equal("plain"))
	g.Expect(plain.ByObject).To(BeNil())
	one, two := resolve("red", "1"), resolve("red", "2")
	g.Expect(one.ByObject).To(Equal(byObject))
	g.Expect(one.Key).NotTo(Equal(two.Key))
	g.Expect(one.Reference).NotTo(Equal(two.Reference))
	g.Expect(resolve("red", "1").Key).To(Equal(one.Key))
	g.Expect(withOverrides(named{}, scheme.Scheme, nil, nil)).To(Equal(named{}))
}

// Options that are not valid, and a panic, are an invalid reference of that extension.
func TestInvalidOverrides(t *testing.T) {
	with := func(version string, settings cache.ByObject) func(client.Object) CacheOverrides {
		return func(client.Object) CacheOverrides {
			return CacheOverrides{Version: version, ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: settings}}
		}
	}
	for problem, perExtension := range map[string]func(client.Object) CacheOverrides{
		"a Version is missing":      with("", cache.ByObject{}),
		"one line":                  with("a\nb", cache.ByObject{}),
		"at most 253":               with(strings.Repeat("x", 254), cache.ByObject{}),
		"must not have the empty":   with("1", cache.ByObject{Namespaces: map[string]cache.Config{"": {}}}),
		"a namespace that cannot":   with("1", cache.ByObject{Namespaces: map[string]cache.Config{"a/b": {}}}),
		"a selector of the cache's": with("1", cache.ByObject{Label: labels.Nothing()}),
		"two objects of /v1, Kind=Secret": func(client.Object) CacheOverrides {
			metadata := &metav1.PartialObjectMetadata{}
			metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
			return CacheOverrides{
				Version:  "1",
				ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {}, metadata: {}},
			}
		},
		"panicked": func(client.Object) CacheOverrides { panic("a bug of the host operator") },
	} {
		g := NewWithT(t)
		resolver := withOverrides(named{}, scheme.Scheme, nil, perExtension)
		resolution, err := resolver.Resolve(t.Context(), &corev1.ConfigMap{})
		expected := And(MatchError(credential.ErrInvalidReference), MatchError(ContainSubstring(problem)),
			MatchError(ContainSubstring("Options.Cache.PerExtension")))
		g.Expect(err).To(expected)
		g.Expect(resolution.Key).To(BeEmpty())
		g.Expect(resolution.Source).To(Equal("source"))
		if _, err = resolver.Reference(&corev1.ConfigMap{}); problem == "panicked" {
			g.Expect(err).To(expected)
		} else {
			g.Expect(err).NotTo(HaveOccurred(), "For does not check the options")
			g.Expect(resolution.Reference.Name).To(HavePrefix("with cache options"))
		}
	}
}

// An error of the credential comes with the reference that For compares.
func TestOverridesOfARefusedCredential(t *testing.T) {
	g := NewWithT(t)
	resolver := withOverrides(named{err: credential.ErrInvalidCredential}, scheme.Scheme, nil,
		func(client.Object) CacheOverrides {
			return CacheOverrides{Version: "1", ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {}}}
		})
	resolution, err := resolver.Resolve(t.Context(), &corev1.ConfigMap{})
	g.Expect(err).To(MatchError(credential.ErrInvalidCredential))
	g.Expect(resolution.Reference.Name).To(ContainSubstring("cache options 1"))
	g.Expect(resolution.ByObject).To(BeNil())
}
