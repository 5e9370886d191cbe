package serviceprovider

import (
	"maps"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

// APIReconcilerBuilder builds an APIReconciler. All but ProviderConfig, SecretNamespace,
// ConfigMapNamespace, WorkloadCluster and ControllerOptions are required.
type APIReconcilerBuilder[T API, C Config] struct {
	settings apiSettings[T, C]
}

// apiSettings is what a builder collects.
type apiSettings[T API, C Config] struct {
	empty              func() T
	config             *C
	onboarding         cluster.Cluster
	platform           cluster.Cluster
	access             ClusterAccessProvider
	workload           bool
	secretNamespace    string
	configMapNamespace string
	reconciler         Reconciler[T, C]
	options            controller.Options
}

// NewAPIReconcilerBuilder returns a builder.
func NewAPIReconcilerBuilder[T API, C Config]() *APIReconcilerBuilder[T, C] {
	return &APIReconcilerBuilder[T, C]{}
}

// EmptyObjectProvider sets the function that returns a new, empty API object.
func (b *APIReconcilerBuilder[T, C]) EmptyObjectProvider(empty func() T) *APIReconcilerBuilder[T, C] {
	b.settings.empty = empty
	return b
}

// ProviderConfig sets the config to begin with, or to stay with if SetupWithManager gets no
// channel.
func (b *APIReconcilerBuilder[T, C]) ProviderConfig(config C) *APIReconcilerBuilder[T, C] {
	b.settings.config = &config
	return b
}

// OnboardingCluster sets the cluster that has the API objects. The manager must run it. The scheme
// of the cluster needs their kind and its list.
func (b *APIReconcilerBuilder[T, C]) OnboardingCluster(onboarding cluster.Cluster) *APIReconcilerBuilder[T, C] {
	b.settings.onboarding = onboarding
	return b
}

// PlatformCluster sets the cluster that has the Secrets of SecretNamespace, and the ConfigMaps of
// ConfigMapNamespace.
func (b *APIReconcilerBuilder[T, C]) PlatformCluster(platform cluster.Cluster) *APIReconcilerBuilder[T, C] {
	b.settings.platform = platform
	return b
}

// ClusterAccessReconciler sets what obtains access to the clusters, usually the result of
// NewClusterAccess.
func (b *APIReconcilerBuilder[T, C]) ClusterAccessReconciler(access ClusterAccessProvider) *APIReconcilerBuilder[T,
	C] {
	b.settings.access = access
	return b
}

// WorkloadCluster says whether ClusterContext.WorkloadCluster is set. NewClusterAccess must request
// a workload cluster if and only if this is true.
func (b *APIReconcilerBuilder[T, C]) WorkloadCluster(wanted bool) *APIReconcilerBuilder[T, C] {
	b.settings.workload = wanted
	return b
}

// SecretNamespace sets the namespace on the platform cluster whose Secrets the Reconciler's
// SecretWatcher gets. The provider needs list and watch on secrets there. Without a SecretWatcher,
// no Secret is read.
func (b *APIReconcilerBuilder[T, C]) SecretNamespace(namespace string) *APIReconcilerBuilder[T, C] {
	b.settings.secretNamespace = namespace
	return b
}

// ConfigMapNamespace is SecretNamespace for the Reconciler's ConfigMapWatcher, and configmaps.
func (b *APIReconcilerBuilder[T, C]) ConfigMapNamespace(namespace string) *APIReconcilerBuilder[T, C] {
	b.settings.configMapNamespace = namespace
	return b
}

// Reconciler sets what the author of the provider wrote.
func (b *APIReconcilerBuilder[T, C]) Reconciler(reconciler Reconciler[T, C]) *APIReconcilerBuilder[T, C] {
	b.settings.reconciler = reconciler
	return b
}

// ControllerOptions sets options of the controller. MaxConcurrentReconciles defaults to that of the
// manager, or else to 10, so that a tenant's server that hangs does not delay all others. The
// Reconciler in the options is overwritten.
func (b *APIReconcilerBuilder[T, C]) ControllerOptions(options controller.Options) *APIReconcilerBuilder[T, C] {
	b.settings.options = options
	return b
}

// Build returns the APIReconciler, or an error that names everything that is missing.
func (b *APIReconcilerBuilder[T, C]) Build() (*APIReconciler[T, C], error) {
	s := b.settings
	err := missing(map[string]bool{
		"EmptyObjectProvider": s.empty == nil, "OnboardingCluster": s.onboarding == nil,
		"PlatformCluster": s.platform == nil, "ClusterAccessReconciler": s.access == nil, "Reconciler": s.reconciler == nil,
	})
	if err == nil {
		err = s.checkWorkload()
	}
	if err != nil {
		return nil, errors.WithMessage(err, "the API reconciler")
	}
	r := &APIReconciler[T, C]{settings: s}
	if s.config != nil && !isNil(*s.config) {
		r.current.set(*s.config, true)
	}
	return r, nil
}

// MustBuild is Build that panics instead of returning an error.
func (b *APIReconcilerBuilder[T, C]) MustBuild() *APIReconciler[T, C] {
	r, err := b.Build()
	if err != nil {
		panic(err)
	}
	return r
}

// checkWorkload returns an error if the Reconciler would get another number of clusters than are
// requested. Only the built-in provider says what it requests.
func (s *apiSettings[T, C]) checkWorkload() error {
	builtIn, ok := builtInAccess(s.access)
	if !ok {
		return nil
	}
	switch requested := slices.Contains(builtIn.kinds, workloadCluster); {
	case s.workload && !requested:
		return errors.New("WorkloadCluster is true, but AccessOptions.Workload requests nothing")
	case !s.workload && requested:
		return errors.New("AccessOptions.Workload requests a workload cluster, but WorkloadCluster is false")
	}
	return nil
}

// builtInAccess returns the built-in provider that an access provider is or wraps.
func builtInAccess(access ClusterAccessProvider) (*clusterAccess, bool) {
	for {
		switch a := access.(type) {
		case *clusterAccess:
			return a, a != nil
		case interface{ Unwrap() ClusterAccessProvider }:
			access = a.Unwrap()
		default:
			return nil, false
		}
	}
}

// missing returns an error that lists the names that are true.
func missing(absent map[string]bool) error {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(absent)) {
		if absent[name] {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return errors.Errorf("missing: %s", strings.Join(names, ", "))
}
