package clusterapi

import (
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The types are Cluster API's, under their names.

// Options is Cluster API's.
type Options = clustercache.Options

// ClusterFilter is Cluster API's.
type ClusterFilter = clustercache.ClusterFilter

// CacheOptions is Cluster API's.
type CacheOptions = clustercache.CacheOptions

// CacheOptionsIndex is Cluster API's.
type CacheOptionsIndex = clustercache.CacheOptionsIndex

// ClientOptions is Cluster API's.
type ClientOptions = clustercache.ClientOptions

// ClientCacheOptions is Cluster API's.
type ClientCacheOptions = clustercache.ClientCacheOptions

// ClusterCache is Cluster API's.
type ClusterCache = clustercache.ClusterCache

// HealthCheckingState is Cluster API's.
type HealthCheckingState = clustercache.HealthCheckingState

// Watcher is Cluster API's.
type Watcher = clustercache.Watcher

// WatcherOptions is Cluster API's.
type WatcherOptions = clustercache.WatcherOptions

// GetClusterSourceOption is Cluster API's.
type GetClusterSourceOption = clustercache.GetClusterSourceOption

// GetClusterSourceOptions is Cluster API's.
type GetClusterSourceOptions = clustercache.GetClusterSourceOptions

// WatchForProbeFailure is Cluster API's.
type WatchForProbeFailure = clustercache.WatchForProbeFailure

// RESTClient is Cluster API's.
type RESTClient = clustercache.RESTClient

// SourceWatcher is Cluster API's.
type SourceWatcher[request comparable] = clustercache.SourceWatcher[request]

// TypedWatcherOptions is Cluster API's.
type TypedWatcherOptions[object client.Object, request comparable] = clustercache.TypedWatcherOptions[object, request]

// ErrClusterNotConnected is Cluster API's: errors.Is finds it in the error of each call for a
// cluster that is not connected.
var ErrClusterNotConnected = clustercache.ErrClusterNotConnected

// NodeProviderIDIndex is Cluster API's.
var NodeProviderIDIndex = clustercache.NodeProviderIDIndex

// NewWatcher is Cluster API's.
func NewWatcher[object client.Object, request comparable](options TypedWatcherOptions[object, request]) Watcher {
	return clustercache.NewWatcher(options)
}
