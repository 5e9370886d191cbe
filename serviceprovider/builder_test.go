package serviceprovider

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// noCluster is a cluster that is never used.
type noCluster struct{ cluster.Cluster }

type noAccess struct{ ClusterAccessProvider }

// wrapped is an access provider around another.
type wrapped struct{ ClusterAccessProvider }

func (w wrapped) Unwrap() ClusterAccessProvider { return w.ClusterAccessProvider }

type noReconciler struct{}

func (noReconciler) CreateOrUpdate(context.Context, *testAPI, *testConfig, ClusterContext) (ctrl.Result, error) {
	return ctrl.Result{}, nil
}

func (noReconciler) Delete(context.Context, *testAPI, *testConfig, ClusterContext) (ctrl.Result, error) {
	return ctrl.Result{}, nil
}

type apiBuilder = *APIReconcilerBuilder[*testAPI, *testConfig]

func completeAPI() apiBuilder {
	return NewAPIReconcilerBuilder[*testAPI, *testConfig]().EmptyObjectProvider(func() *testAPI { return &testAPI{} }).
		OnboardingCluster(noCluster{}).PlatformCluster(noCluster{}).ClusterAccessReconciler(noAccess{}).
		Reconciler(noReconciler{})
}

// Everything that is missing is named, by Build and by MustBuild.
func TestAPIBuilder(t *testing.T) {
	g := NewWithT(t)
	g.Expect(completeAPI().Build()).NotTo(BeNil())
	for name, leave := range map[string]func(apiBuilder){
		"EmptyObjectProvider":     func(b apiBuilder) { b.EmptyObjectProvider(nil) },
		"OnboardingCluster":       func(b apiBuilder) { b.OnboardingCluster(nil) },
		"PlatformCluster":         func(b apiBuilder) { b.PlatformCluster(nil) },
		"ClusterAccessReconciler": func(b apiBuilder) { b.ClusterAccessReconciler(nil) },
		"Reconciler":              func(b apiBuilder) { b.Reconciler(nil) },
	} {
		b := completeAPI()
		leave(b)
		_, err := b.Build()
		g.Expect(err).To(MatchError("the API reconciler: missing: " + name))
		g.Expect(func() { b.MustBuild() }).To(PanicWith(MatchError(ContainSubstring(name))))
	}
	_, err := NewAPIReconcilerBuilder[*testAPI, *testConfig]().Build()
	g.Expect(strings.Count(err.Error(), ",")).To(Equal(4), "all of them: %s", err)

	r := completeAPI().MustBuild()
	g.Expect(r.SetupWithManager(nil, "it", nil)).To(MatchError(ContainSubstring("would never have a config")))
	_, exists, _ := completeAPI().ProviderConfig(&testConfig{}).MustBuild().current.get()
	g.Expect(exists).To(BeTrue())
}

// What is requested and what the Reconciler expects cannot disagree.
func TestWorkloadMustAgree(t *testing.T) {
	g := NewWithT(t)
	without := &clusterAccess{kinds: []clusterKind{mcpCluster}}
	with := &clusterAccess{kinds: []clusterKind{mcpCluster, workloadCluster}}
	for _, tc := range []struct {
		access   ClusterAccessProvider
		workload bool
		problem  string
	}{
		{without, false, ""}, {with, true, ""}, {wrapped{with}, true, ""}, {noAccess{}, true, ""}, {noAccess{}, false, ""},
		{without, true, "AccessOptions.Workload requests nothing"},
		{with, false, "WorkloadCluster is false"},
		{wrapped{wrapped{with}}, false, "WorkloadCluster is false"},
	} {
		_, err := completeAPI().ClusterAccessReconciler(tc.access).WorkloadCluster(tc.workload).Build()
		if tc.problem == "" {
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
		}
	}
}

func TestConfigBuilder(t *testing.T) {
	g := NewWithT(t)
	complete := func() *ConfigReconcilerBuilder[*testConfig] {
		return NewConfigReconcilerBuilder[*testConfig]().EmptyObjectProvider(func() *testConfig { return &testConfig{} }).
			PlatformCluster(noCluster{}).ProviderName("it").UpdateChannel(make(chan event.GenericEvent))
	}
	g.Expect(complete().Build()).NotTo(BeNil())
	for name, leave := range map[string]func(*ConfigReconcilerBuilder[*testConfig]){
		"EmptyObjectProvider": func(b *ConfigReconcilerBuilder[*testConfig]) { b.EmptyObjectProvider(nil) },
		"PlatformCluster":     func(b *ConfigReconcilerBuilder[*testConfig]) { b.PlatformCluster(nil) },
		"ProviderName":        func(b *ConfigReconcilerBuilder[*testConfig]) { b.ProviderName("") },
		"UpdateChannel":       func(b *ConfigReconcilerBuilder[*testConfig]) { b.UpdateChannel(nil) },
	} {
		b := complete()
		leave(b)
		_, err := b.Build()
		g.Expect(err).To(MatchError("the config reconciler: missing: " + name))
		g.Expect(func() { b.MustBuild() }).To(PanicWith(MatchError(ContainSubstring(name))))
	}
}

func TestAccessOptions(t *testing.T) {
	g := NewWithT(t)
	complete := func(name string, options AccessOptions) error { return options.complete(name) }
	g.Expect(complete("mailbox.Example", AccessOptions{})).To(Succeed())
	for _, name := range []string{"", "a b", "-a", "a/b", strings.Repeat("a", 254)} {
		g.Expect(complete(name, AccessOptions{})).To(MatchError(ContainSubstring("must consist of")), name)
	}
	g.Expect(complete("a", AccessOptions{RetryInterval: -1})).NotTo(Succeed())
	g.Expect(complete("a", AccessOptions{Connections: clustercache.Options{Name: "b"}})).To(
		MatchError(ContainSubstring("must not be set")))
	g.Expect(connectionsName("mailbox.Example")).To(Equal("mailbox-example-access"))
	g.Expect(len(connectionsName(strings.Repeat("a", 253)))).To(BeNumerically("<=", 63))
	_, err := NewClusterAccess(nil, nil, "a", AccessOptions{})
	g.Expect(err).To(MatchError("the platform cluster is missing"))
}
