package platformactor

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// Finalizer is the actor's own on every request that it granted.
const Finalizer = "clusters.openmcp.cloud/platformactor"

// interval is the time between two looks at all requests.
const interval = 20 * time.Millisecond

// Verdict says what to do with a request.
type Verdict int

// Verdicts. The zero value grants.
const (
	Grant Verdict = iota // and, once it is being deleted, let it go
	Hold                 // do nothing, also not let it go
	Deny
)

// Actor answers requests. Its methods may be called from any goroutine.
type Actor struct {
	platform client.Client
	remotes  map[string]remote // by the purpose of ClusterRequests

	mu         sync.Mutex
	judge      func(client.Object) Verdict                          // guarded by mu
	kubeconfig func(*clustersv1alpha1.AccessRequest, []byte) []byte // guarded by mu
	// guarded by mu; what tokens are bound to, by AccessRequest
	secrets map[client.ObjectKey]string
}

// remote is a cluster to give access to.
type remote struct {
	client.Client
	config *rest.Config
	http   *http.Client
}

// New returns an Actor that acts with these administrators' configs. The remotes are by the purpose
// of ClusterRequests, such as "mcp".
func New(platform *rest.Config, remotes map[string]*rest.Config) (*Actor, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clustersv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	connect := func(config *rest.Config) (r remote, err error) {
		own := rest.CopyConfig(config)
		own.QPS, own.Dial = -1, new(net.Dialer).DialContext // another Dial is another transport
		r.config = config
		if r.http, err = rest.HTTPClientFor(own); err == nil {
			r.Client, err = client.New(own, client.Options{Scheme: scheme, HTTPClient: r.http})
		}
		return r, err
	}
	a := &Actor{remotes: map[string]remote{}, secrets: map[client.ObjectKey]string{}}
	r, err := connect(platform)
	if err != nil {
		return nil, err
	}
	a.platform = r.Client
	for purpose, config := range remotes {
		if a.remotes[purpose], err = connect(config); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// CloseIdleConnections closes the idle connections to the remote clusters, for tests that count
// goroutines.
func (a *Actor) CloseIdleConnections() {
	for _, r := range a.remotes {
		utilnet.CloseIdleConnectionsFor(r.http.Transport)
	}
}

// Judge sets the function that decides about requests; nil grants all.
func (a *Actor) Judge(judge func(client.Object) Verdict) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.judge = judge
}

// Kubeconfig sets the function that may replace the kubeconfigs that the actor hands out.
func (a *Actor) Kubeconfig(replace func(request *clustersv1alpha1.AccessRequest, kubeconfig []byte) []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kubeconfig = replace
}

func (a *Actor) verdict(request client.Object) Verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.judge == nil {
		return Grant
	}
	return a.judge(request)
}

// Run answers requests until ctx is done. Errors are passed to report, unless another look mends
// them.
func (a *Actor) Run(ctx context.Context, report func(error)) {
	for {
		if err := a.look(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			report(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
	}
}

// look answers all requests once. An error of one does not hold up the others.
func (a *Actor) look(ctx context.Context) (failure error) {
	clusterRequests := &clustersv1alpha1.ClusterRequestList{}
	if err := a.platform.List(ctx, clusterRequests); err != nil {
		return fmt.Errorf("listing the ClusterRequests: %w", err)
	}
	for i := range clusterRequests.Items {
		if err := a.answerClusterRequest(ctx, &clusterRequests.Items[i]); err != nil {
			failure = fmt.Errorf("answering a ClusterRequest: %w", err)
		}
	}
	accessRequests := &clustersv1alpha1.AccessRequestList{}
	if err := a.platform.List(ctx, accessRequests); err != nil {
		return fmt.Errorf("listing the AccessRequests: %w", err)
	}
	for i := range accessRequests.Items {
		if err := a.answerAccessRequest(ctx, &accessRequests.Items[i]); err != nil {
			failure = fmt.Errorf("answering an AccessRequest: %w", err)
		}
	}
	return failure
}

// answerClusterRequest plays the scheduler.
func (a *Actor) answerClusterRequest(ctx context.Context, request *clustersv1alpha1.ClusterRequest) error {
	verdict := a.verdict(request)
	switch {
	case verdict == Hold:
		return nil
	case !request.DeletionTimestamp.IsZero():
		return a.letGo(ctx, request)
	case request.Status.Phase == clustersv1alpha1.PhaseDenied && verdict == Deny,
		request.Status.Phase == clustersv1alpha1.PhaseGranted:
		return nil
	case verdict == Deny:
		request.Status.RequestStatus = denied(request)
		return a.platform.Status().Update(ctx, request)
	}
	if err := a.hold(ctx, request); err != nil {
		return err
	}
	request.Status = clustersv1alpha1.ClusterRequestStatus{
		RequestStatus: granted(request),
		Cluster:       &clustersv1alpha1.ObjectReference{Namespace: "clusters", Name: request.Spec.Purpose},
	}
	return a.platform.Status().Update(ctx, request)
}

// answerAccessRequest plays the cluster provider.
func (a *Actor) answerAccessRequest(ctx context.Context, request *clustersv1alpha1.AccessRequest) error {
	verdict := a.verdict(request)
	isAnswered := request.Status.ObservedGeneration == request.Generation && request.Status.Phase != ""
	switch {
	case verdict == Hold:
		return nil
	case !request.DeletionTimestamp.IsZero():
		if err := a.revoke(ctx, request); err != nil {
			return err
		}
		return a.letGo(ctx, request)
	case verdict == Deny && request.Status.Phase == clustersv1alpha1.PhaseDenied && isAnswered:
		return nil
	case verdict == Deny:
		request.Status.RequestStatus = denied(request)
		return a.platform.Status().Update(ctx, request)
	case request.Status.Phase == clustersv1alpha1.PhaseGranted && isAnswered:
		return nil
	}
	clusterRequest := &clustersv1alpha1.ClusterRequest{}
	ref := request.Spec.RequestRef
	if err := a.platform.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name},
		clusterRequest); err != nil ||
		clusterRequest.Status.Cluster == nil {
		return client.IgnoreNotFound(err) // not yet
	}
	if request.Spec.ClusterRef == nil {
		request.Spec.ClusterRef = clusterRequest.Status.Cluster
		if request.Labels == nil {
			request.Labels = map[string]string{}
		}
		request.Labels["clusters.openmcp.cloud/provider"] = "platformactor"
		return a.platform.Update(ctx, request)
	}
	if err := a.hold(ctx, request); err != nil {
		return err
	}
	if err := a.give(ctx, request); err != nil {
		return err
	}
	request.Status = clustersv1alpha1.AccessRequestStatus{
		RequestStatus: granted(request),
		SecretRef:     &clustersv1alpha1.LocalObjectReference{Name: SecretName(request)},
	}
	return a.platform.Status().Update(ctx, request)
}

// SecretName returns the name of the Secret for an AccessRequest.
func SecretName(request client.Object) string { return "access-" + request.GetName() }

func granted(request client.Object) clustersv1alpha1.RequestStatus {
	return clustersv1alpha1.RequestStatus{
		Phase:              clustersv1alpha1.PhaseGranted,
		ObservedGeneration: request.GetGeneration(),
	}
}

func denied(request client.Object) clustersv1alpha1.RequestStatus {
	return clustersv1alpha1.RequestStatus{
		Phase:              clustersv1alpha1.PhaseDenied,
		ObservedGeneration: request.GetGeneration(),
		Conditions: []metav1.Condition{{
			Type:               "Ready",
			Status:             metav1.ConditionFalse,
			Reason:             "Quota",
			Message:            "the quota is used up",
			LastTransitionTime: metav1.Now(),
		}},
	}
}

// hold adds the actor's finalizer.
func (a *Actor) hold(ctx context.Context, request client.Object) error {
	if !controllerutil.AddFinalizer(request, Finalizer) {
		return nil
	}
	return a.platform.Update(ctx, request)
}

// letGo removes the actor's finalizer.
func (a *Actor) letGo(ctx context.Context, request client.Object) error {
	if !controllerutil.RemoveFinalizer(request, Finalizer) {
		return nil
	}
	return a.platform.Update(ctx, request)
}

// secretFor returns the Secret with a kubeconfig for an AccessRequest.
func secretFor(request *clustersv1alpha1.AccessRequest, server *rest.Config, kubeconfig []byte, token string,
	expires time.Time) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: SecretName(request)},
		Data: map[string][]byte{
			clustersv1alpha1.SecretKeyKubeconfig:          kubeconfig,
			clustersv1alpha1.SecretKeyHost:                []byte(server.Host),
			clustersv1alpha1.SecretKeyCA:                  server.CAData,
			clustersv1alpha1.SecretKeyToken:               []byte(token),
			clustersv1alpha1.SecretKeyCreationTimestamp:   []byte(strconv.FormatInt(time.Now().Unix(), 10)),
			clustersv1alpha1.SecretKeyExpirationTimestamp: []byte(expires.UTC().Format(time.RFC3339)),
		},
	}
}
