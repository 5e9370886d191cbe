package serviceprovider

import (
	"context"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// Annotations by which the runtime remembers how far an object is. Their values begin with the UID
// of the object, so that an object that was restored from a backup begins anew.
const (
	// usedAnnotation: "<UID>/" and the clusters that the author's CreateOrUpdate was called with.
	// Set together with the finalizer, with none. An object without the annotation may have used
	// all.
	usedAnnotation = "serviceprovider.latchkey.dev/used"
	// removedAnnotation: the UID, after the author's Delete has succeeded. It alone distinguishes
	// access that we withdrew from access that was lost.
	removedAnnotation = "serviceprovider.latchkey.dev/removed"
)

// usedClusters returns the IDs of the clusters that the object has used, and false if that is not
// known.
func usedClusters(obj client.Object) (used []string, known bool) {
	uid, list, known := strings.Cut(obj.GetAnnotations()[usedAnnotation], "/")
	if !known || uid != string(obj.GetUID()) {
		return nil, false
	}
	for _, id := range strings.Split(list, ",") {
		if id != "" {
			used = append(used, id)
		}
	}
	return used, true
}

// setUsed records the clusters that the object has used.
func setUsed(obj client.Object, used []string) {
	setAnnotation(obj, usedAnnotation, string(obj.GetUID())+"/"+strings.Join(used, ","))
}

// isRemoved reports whether the author's Delete has succeeded for this very object.
func isRemoved(obj client.Object) bool {
	return obj.GetUID() != "" && obj.GetAnnotations()[removedAnnotation] == string(obj.GetUID())
}

// setAnnotation sets an annotation, or removes it if the value is empty.
func setAnnotation(obj client.Object, annotation, value string) {
	annotations := merged(obj.GetAnnotations(), nil)
	if value == "" {
		delete(annotations, annotation)
	} else {
		annotations[annotation] = value
	}
	obj.SetAnnotations(annotations)
}

// accessTo has the access provider's calls for one kind of cluster.
type accessTo struct {
	kind    clusterKind
	request func(context.Context, reconcile.Request) (*clustersv1alpha1.AccessRequest, error)
	cluster func(context.Context, reconcile.Request) (*Cluster, error)
}

// accesses returns the access provider's calls for each cluster that the provider wants.
func (s *apiSettings[T, C]) accesses() []accessTo {
	list := []accessTo{{mcpCluster, s.access.MCPAccessRequest, s.access.MCPCluster}}
	if s.workload {
		list = append(list, accessTo{workloadCluster, s.access.WorkloadAccessRequest, s.access.WorkloadCluster})
	}
	return list
}

// clusters returns the clusters of an object that has access.
func (s *apiSettings[T, C]) clusters(ctx context.Context, request reconcile.Request) (clusters ClusterContext,
	err error) {
	for _, access := range s.accesses() {
		cluster, err := access.cluster(ctx, request)
		if err != nil {
			return ClusterContext{}, err
		}
		found, err := access.request(ctx, request)
		if err != nil {
			return ClusterContext{}, errors.Wrap(err, "reading the AccessRequest")
		}
		clusters.set(access.kind, cluster, found)
	}
	return clusters, nil
}

func (c *ClusterContext) set(kind clusterKind, cluster *Cluster, request *clustersv1alpha1.AccessRequest) {
	var secret client.ObjectKey
	if request != nil && request.Status.SecretRef != nil {
		secret = client.ObjectKey{Namespace: request.Namespace, Name: request.Status.SecretRef.Name}
	}
	if kind == mcpCluster {
		c.MCPCluster, c.MCPAccessSecretKey = cluster, secret
	} else {
		c.WorkloadCluster, c.WorkloadAccessSecretKey = cluster, secret
	}
}

// has reports whether one of the clusters is the connection of that extension.
func (c *ClusterContext) has(extension client.ObjectKey) bool {
	return slices.ContainsFunc([]*Cluster{c.MCPCluster, c.WorkloadCluster}, func(cluster *Cluster) bool {
		return cluster != nil && cluster.options.Extension != nil &&
			client.ObjectKeyFromObject(cluster.options.Extension) == extension
	})
}
