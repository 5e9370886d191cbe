package ownwrites

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// seen is an informer that has one object.
type seen struct {
	behind
	object Object
}

func (s *seen) Stored(types.NamespacedName) (Object, bool) { return s.object, s.object.UID != "" }

// answers is an API server that gives these answers, one after the other.
type answers []struct {
	code int
	body string
}

// newTestClient returns a client of the answers, and the writes that it records for an informer.
func newTestClient(t *testing.T, informer Informer, give answers) (*Client, *Writes) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		next := give[0]
		give = give[1:]
		if next.code == 0 {
			panic(http.ErrAbortHandler) // cuts the connection
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(next.code)
		_, _ = io.WriteString(w, next.body)
	}))
	t.Cleanup(server.Close)
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		appsv1.SchemeGroupVersion.WithKind("Deployment")} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	plain, err := client.New(&rest.Config{
		Host:          server.URL,
		QPS:           -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	}, client.Options{HTTPClient: HTTPClient(&http.Client{}), Scheme: scheme.Scheme, Mapper: mapper})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	w := New(func(schema.GroupKind) []Informer { return []Informer{informer} })
	w.Enable()
	return NewClient(plain, func() *Writes { return w }), w
}

var configMapKind = schema.GroupKind{Kind: "ConfigMap"}

func newConfigMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a",
		Name:      "x",
		Labels:    map[string]string{"visible": "yes"},
	}}
}

// status is an answer with an error.
func status(code int) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d}`, code)
}

// A write may have happened if the last attempt, or an earlier one, does not say that it has not.
func TestUnknownOutcomes(t *testing.T) {
	gone := status(http.StatusNotFound)
	for name, tc := range map[string]struct {
		give answers
		want bool
	}{
		"conflict":                   {answers{{409, status(409)}}, false},
		"forbidden":                  {answers{{403, status(403)}}, false},
		"timeout":                    {answers{{504, status(504)}}, true},
		"internal error":             {answers{{500, status(500)}}, true},
		"no answer":                  {answers{{0, ""}}, true},
		"not a Status":               {answers{{502, "<html>"}}, true},
		"busy, then not found":       {answers{{429, status(429)}, {404, gone}}, false},
		"executed, then asked again": {answers{{503, "<html>"}, {404, gone}}, true},
		"unreadable":                 {answers{{200, "{"}}, true},
	} {
		if name == "internal error" || name == "timeout" || name == "not a Status" { // these are tried again, too
			for range 10 {
				tc.give = append(tc.give, tc.give[0])
			}
		}
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			informer := &seen{behind{version: "10"}, Object{"1", "9"}}
			c, w := newTestClient(t, informer, tc.give)
			g.Expect(c.Delete(t.Context(), newConfigMap())).NotTo(Succeed())
			g.Expect(w.BeforeGet(configMapKind, types.NamespacedName{Namespace: "a", Name: "x"}).Judge(informer).Ask).
				To(Equal(tc.want))
		})
	}
}

// The labels of a write are those of the answer, whatever the caller does with the object later.
func TestLabelsAreCopied(t *testing.T) {
	g := NewWithT(t)
	informer := &selecting{behind{version: "10"}}
	c, w := newTestClient(t, informer, answers{{201, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"a",
		"name":"x","uid":"1","resourceVersion":"11","labels":{"visible":"yes"}}}`}})
	object := newConfigMap()
	g.Expect(c.Create(t.Context(), object)).To(Succeed())
	object.Labels["visible"] = "no"
	g.Expect(w.BeforeGet(configMapKind, client.ObjectKeyFromObject(object)).Judge(informer)).
		To(Equal(Judgement{Key: client.ObjectKeyFromObject(object), Version: "11"}))
}

// selecting is an informer of visible objects that has nothing.
type selecting struct{ behind }

func (s *selecting) HasSelectors() bool { return true }
func (s *selecting) Selects(labels map[string]string) Selection {
	if labels["visible"] == "yes" {
		return Selected
	}
	return NotSelected
}

// The answer to the application of a scale is a Scale, and the write is one of the object.
func TestApplyOfAScale(t *testing.T) {
	g := NewWithT(t)
	informer := &seen{behind{version: "10"}, Object{"1", "9"}}
	c, w := newTestClient(t, informer, answers{{200, `{"kind":"Scale","apiVersion":"autoscaling/v1",
		"metadata":{"namespace":"a","name":"x","uid":"1","resourceVersion":"11"}}`}})
	scale := v1.Deployment("x", "a").WithSpec(v1.DeploymentSpec().WithReplicas(5))
	g.Expect(c.SubResource("scale").Apply(t.Context(), scale, client.FieldOwner("o"))).To(Succeed())
	g.Expect(w.BeforeGet(schema.GroupKind{Group: "apps", Kind: "Deployment"},
		types.NamespacedName{Namespace: "a", Name: "x"}).Judge(informer).Version).To(Equal("11"))
}

// An update that removes the last finalizer deletes the object; the answer is the object of the
// request. A Namespace may have other finalizers.
func TestLastFinalizer(t *testing.T) {
	answer := func(finalizers []string, grace *int64) *metadata {
		result := &metadata{ObjectMeta: metav1.ObjectMeta{UID: "1", ResourceVersion: "9"}}
		result.DeletionTimestamp = ptr.To(metav1.Now())
		result.Finalizers, result.DeletionGracePeriodSeconds = finalizers, grace
		return result
	}
	for name, tc := range map[string]struct {
		object *metadata
		want   Write
	}{
		"of an object":    {answer(nil, ptr.To[int64](0)), Write{Gone: true}},
		"of a Namespace":  {answer(nil, nil), Write{Unknown: true}},
		"not the last":    {answer([]string{"f"}, ptr.To[int64](0)), Write{}},
		"a Pod that ends": {answer(nil, ptr.To[int64](30)), Write{}},
	} {
		w := answered(tc.object)
		NewWithT(t).Expect(Write{Gone: w.Gone, Unknown: w.Unknown}).To(Equal(tc.want), name)
	}
}

// API servers without versions make nothing wait. A cluster-scoped object has no namespace.
func TestWithoutVersion(t *testing.T) {
	g := NewWithT(t)
	informer := &behind{version: "10"}
	answer := `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"x","uid":"1"}}`
	c, w := newTestClient(t, informer, answers{
		{201, answer}, {200, strings.Replace(answer, `"uid"`, `"resourceVersion":"11","uid"`, 1)},
	})
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	g.Expect(c.Create(t.Context(), object)).To(Succeed())
	g.Expect(w.Any()).To(BeFalse())
	object.Namespace = "wrong"
	g.Expect(c.Update(t.Context(), object)).To(Succeed())
	g.Expect(w.Concern(schema.GroupKind{Kind: "Namespace"}, types.NamespacedName{Name: "x"})).To(BeTrue())

	w.Add(configMapKind, types.NamespacedName{}, Write{Unknown: true})
	required := w.BeforeList(configMapKind, "a", "")
	g.Expect(required.Judge(informer).Ask).To(BeTrue())
	required.Listed("", nil)
	g.Expect(w.BeforeList(configMapKind, "a", "").None()).To(BeTrue())
}
