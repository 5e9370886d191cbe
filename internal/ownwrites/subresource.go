package ownwrites

import (
	"cmp"
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Status implements client.StatusClient.
func (c *Client) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource implements client.SubResourceClientConstructor.
func (c *Client) SubResource(name string) client.SubResourceClient {
	return &subResource{c.Client.SubResource(name), c, name}
}

// subResource records the writes of a subresource as writes of its object.
type subResource struct {
	client.SubResourceClient
	client *Client
	name   string
}

// answer returns what the answer to an update, patch or apply says of the object. into is where the
// client has read it. A Scale has the version of its object.
func (s *subResource) answer(into any) func(*metadata) (*metadata, Write) {
	return func(object *metadata) (*metadata, Write) {
		switch read := s.client.metadataOf(into); {
		case read == nil:
		case s.name == "status", s.name == "ephemeralcontainers", s.name == "resize":
			return object, answered(read)
		case s.name == "scale" && read.UID != "":
			return object, Write{Object: Object{UID: read.UID, Version: read.ResourceVersion}}
		}
		return object, Write{Unknown: true}
	}
}

// Create implements client.SubResourceWriter. What it does to the object is unknown: an eviction
// may delete it. A token changes nothing.
func (s *subResource) Create(ctx context.Context, object, sub client.Object,
	opts ...client.SubResourceCreateOption) error {
	o := (&client.SubResourceCreateOptions{}).ApplyOptions(opts)
	ignored := ignores(o.DryRun, o.DisableReadYourWritesConsistency) || s.name == "token"
	return s.client.record(ctx, object, ignored, func(ctx context.Context) error {
		return s.SubResourceClient.Create(ctx, object, sub, opts...)
	}, func(object *metadata) (*metadata, Write) { return object, Write{Unknown: true} })
}

// Update implements client.SubResourceWriter.
func (s *subResource) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	o := (&client.SubResourceUpdateOptions{}).ApplyOptions(opts)
	ignored := ignores(o.DryRun, o.DisableReadYourWritesConsistency)
	return s.client.record(ctx, object, ignored, func(ctx context.Context) error {
		return s.SubResourceClient.Update(ctx, object, opts...)
	}, s.answer(cmp.Or(o.SubResourceBody, object)))
}

// Patch implements client.SubResourceWriter.
func (s *subResource) Patch(ctx context.Context, object client.Object, patch client.Patch,
	opts ...client.SubResourcePatchOption) error {
	o := (&client.SubResourcePatchOptions{}).ApplyOptions(opts)
	ignored := ignores(o.DryRun, o.DisableReadYourWritesConsistency)
	return s.client.record(ctx, object, ignored, func(ctx context.Context) error {
		return s.SubResourceClient.Patch(ctx, object, patch, opts...)
	}, s.answer(cmp.Or(o.SubResourceBody, object)))
}

// Apply implements client.SubResourceWriter.
func (s *subResource) Apply(ctx context.Context, obj runtime.ApplyConfiguration,
	opts ...client.SubResourceApplyOption) error {
	o := (&client.SubResourceApplyOptions{}).ApplyOpts(opts)
	ignored := ignores(o.DryRun, o.DisableReadYourWritesConsistency)
	return s.client.record(ctx, obj, ignored, func(ctx context.Context) error {
		return s.SubResourceClient.Apply(ctx, obj, opts...)
	}, s.answer(obj)) // also if there is a SubResourceBody
}
