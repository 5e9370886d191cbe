package clustercache

import (
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) {
	// The metadata informers of a manager leave this goroutine behind when the manager stops; see
	// package test/e2e.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

func TestOptionsAreValidated(t *testing.T) {
	for problem, options := range map[string]Options{
		"UserAgent must be set": {},
		"must be one line":      {Client: ClientOptions{UserAgent: "x\ny"}},
		"must not be negative":  {Client: ClientOptions{UserAgent: "x", Timeout: -1}},
		"the least is 1 MiB":    {Client: ClientOptions{UserAgent: "x", MaxDiscoveryBytes: 64}},
		"must be positive":      {Client: ClientOptions{UserAgent: "x"}, ConnectBackoff: wait.Backoff{Steps: 1}},
		"there is an index": {
			Scheme: scheme.Scheme,
			Cache:  CacheOptions{Indexes: []CacheOptionsIndex{NodeProviderIDIndex, NodeProviderIDIndex}},
		},
		"selects nothing": {
			Scheme: scheme.Scheme,
			Cache:  CacheOptions{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: labels.Nothing()}}},
		},
	} {
		NewWithT(t).Expect(options.validate()).To(MatchError(ContainSubstring(problem)))
	}
	NewWithT(t).
		Expect((&Options{Client: ClientOptions{UserAgent: "x"}, ConnectBackoff: wait.Backoff{Duration: 1}}).validate()).
		To(Succeed())
}

func TestNodeProviderIDIndex(t *testing.T) {
	g := NewWithT(t)
	g.Expect(NodeProviderIDIndex.ExtractValue(&corev1.Node{Spec: corev1.NodeSpec{ProviderID: "cloud://1"}})).
		To(Equal([]string{"cloud://1"}))
	g.Expect(NodeProviderIDIndex.ExtractValue(&corev1.Node{})).To(BeEmpty())
	g.Expect(NodeProviderIDIndex.ExtractValue(&corev1.Pod{})).To(BeEmpty())
	options := Options{
		Client:         ClientOptions{UserAgent: "x"},
		ConnectBackoff: wait.Backoff{Duration: 1},
		Scheme:         scheme.Scheme,
		Cache:          CacheOptions{Indexes: []CacheOptionsIndex{NodeProviderIDIndex}},
	}
	g.Expect(options.validate()).To(Succeed())
}

func TestWants(t *testing.T) {
	labelled := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{WatchLabel: "blue"}}}
	yes, no := func(client.Object) bool { return true }, func(client.Object) bool { return false }
	for name, tc := range map[string]struct {
		options Options
		want    bool
	}{
		"no selection":            {Options{}, true},
		"label":                   {Options{WatchFilterValue: "blue"}, true},
		"another value":           {Options{WatchFilterValue: "green"}, false},
		"filter":                  {Options{Filter: yes}, true},
		"filtered":                {Options{Filter: no}, false},
		"label, but filtered":     {Options{WatchFilterValue: "blue", Filter: no}, false},
		"filter, but other label": {Options{WatchFilterValue: "green", Filter: yes}, false},
	} {
		t.Run(name, func(t *testing.T) { NewWithT(t).Expect(tc.options.matches(labelled)).To(Equal(tc.want)) })
	}
}
