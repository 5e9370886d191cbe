package fake

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// CheckPermissions implements clustercache.Bound. Forbid, ForbidExcept, ForbidListAndWatch and
// ForbidWrites take permissions; a dry run is one of the client of the test. All kinds of its
// scheme are served, and namespaces count as there. The report has no roles.
func (b *bound) CheckPermissions(ctx context.Context, check clustercache.PermissionCheck) (
	*clustercache.PermissionReport, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	e, err := b.cache.connected(b.key)
	if err != nil {
		return nil, err
	}
	from := &mappedClient{e.conn.client(), e.conn.mapperFor(check.Objects)}
	return check.Run(ctx, from, e.conn.reviewer(from.mapper))
}

// mappedClient is a client that knows more resources.
type mappedClient struct {
	client.Client
	mapper meta.RESTMapper
}

// RESTMapper implements client.Client.
func (m *mappedClient) RESTMapper() meta.RESTMapper { return m.mapper }

// mapperFor returns the mapper of the client of the test, which often knows nothing, with the kinds
// of the objects that its scheme has.
func (c *connection) mapperFor(objects []client.Object) meta.RESTMapper {
	kinds := meta.NewDefaultRESTMapper(nil)
	for _, object := range objects {
		if object == nil {
			continue
		}
		kind, err := apiutil.GVKForObject(object, c.testClient.Scheme())
		if err != nil || !c.testClient.Scheme().Recognizes(kind) {
			continue
		}
		scope := meta.RESTScopeNamespace
		if object.GetNamespace() == "" {
			scope = meta.RESTScopeRoot
		}
		kinds.Add(kind, scope)
	}
	return meta.FirstHitRESTMapper{MultiRESTMapper: meta.MultiRESTMapper{c.testClient.RESTMapper(), kinds}}
}

// reviewer returns what answers as an API server would. A Namespace may only be got if the test has
// created it: others count as there.
func (c *connection) reviewer(mapper meta.RESTMapper) func(context.Context,
	authorizationv1.SelfSubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	return func(ctx context.Context, spec authorizationv1.SelfSubjectAccessReviewSpec) (
		status authorizationv1.SubjectAccessReviewStatus, err error) {
		asked := spec.ResourceAttributes
		status.Allowed, status.Reason = true, "RBAC: allowed by the fake"
		if asked == nil {
			return status, nil
		}
		resource := schema.GroupVersionResource{Group: asked.Group, Resource: asked.Resource}
		if resource.GroupResource() == (schema.GroupResource{Resource: "namespaces"}) && asked.Verb == "get" {
			namespace := &unstructured.Unstructured{}
			namespace.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
			status.Allowed = c.testClient.Get(ctx, client.ObjectKey{Name: asked.Name}, namespace) == nil
			return status, nil
		}
		if kind, err := mapper.KindFor(resource); err == nil {
			status.Allowed = c.access.permits(kind.GroupKind(), asked.Namespace, asked.Name, asked.Verb)
		}
		return status, nil
	}
}
