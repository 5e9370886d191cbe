package ownwrites

import (
	"context"
	"encoding/json"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/versions"
)

// Client is a client.Client that records its writes, and whose cached reads include them. Options
// of single calls with DisableReadYourWritesConsistency switch that off. Methods may be called from
// any goroutine.
type Client struct {
	client.Client
	// writes returns those of the cache that the client reads from, nil if there is no cache yet.
	writes func() *Writes
}

// NewClient returns a client that reads and writes through another one, which sends through an
// [HTTPClient].
func NewClient(c client.Client, writes func() *Writes) *Client { return &Client{c, writes} }

// own is the option of reads that have to include the client's own writes.
type own struct{}

var (
	ownGet  = []client.GetOption{own{}}
	ownList = []client.ListOption{own{}}
)

// ApplyToGet implements client.GetOption.
func (own) ApplyToGet(*client.GetOptions) {}

// ApplyToList implements client.ListOption.
func (own) ApplyToList(*client.ListOptions) {}

// WantedByGet reports whether a Get with these options has to include own writes.
func WantedByGet(opts []client.GetOption) bool {
	for _, option := range opts {
		if _, ok := option.(own); ok {
			return true
		}
	}
	return false
}

// WantedByList reports whether a List with these options has to include own writes.
func WantedByList(opts []client.ListOption) bool {
	for _, option := range opts {
		if _, ok := option.(own); ok {
			return true
		}
	}
	return false
}

// any reports whether there is a write that a read may lack.
func (c *Client) any() bool {
	writes := c.writes()
	return writes != nil && writes.Any()
}

// Get implements client.Reader.
func (c *Client) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	switch {
	case !c.any():
	case len(opts) == 0:
		opts = ownGet
	case !(&client.GetOptions{}).ApplyOptions(opts).DisableReadYourWritesConsistency:
		opts = append(opts[:len(opts):len(opts)], own{})
	}
	return c.Client.Get(ctx, key, object, opts...)
}

// List implements client.Reader.
func (c *Client) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	switch {
	case !c.any():
	case len(opts) == 0:
		opts = ownList
	case !(&client.ListOptions{}).ApplyOptions(opts).DisableReadYourWritesConsistency:
		opts = append(opts[:len(opts):len(opts)], own{})
	}
	return c.Client.List(ctx, list, opts...)
}

// Create implements client.Writer.
func (c *Client) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	o := (&client.CreateOptions{}).ApplyOptions(opts)
	return c.write(ctx, object, ignores(o.DryRun, o.DisableReadYourWritesConsistency), func(ctx context.Context) error {
		return c.Client.Create(ctx, object, opts...)
	})
}

// Update implements client.Writer.
func (c *Client) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	o := (&client.UpdateOptions{}).ApplyOptions(opts)
	return c.write(ctx, object, ignores(o.DryRun, o.DisableReadYourWritesConsistency), func(ctx context.Context) error {
		return c.Client.Update(ctx, object, opts...)
	})
}

// Patch implements client.Writer.
func (c *Client) Patch(ctx context.Context, object client.Object, patch client.Patch,
	opts ...client.PatchOption) error {
	o := (&client.PatchOptions{}).ApplyOptions(opts)
	return c.write(ctx, object, ignores(o.DryRun, o.DisableReadYourWritesConsistency), func(ctx context.Context) error {
		return c.Client.Patch(ctx, object, patch, opts...)
	})
}

// Apply implements client.Writer.
func (c *Client) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	o := (&client.ApplyOptions{}).ApplyOptions(opts)
	return c.write(ctx, obj, ignores(o.DryRun, o.DisableReadYourWritesConsistency), func(ctx context.Context) error {
		return c.Client.Apply(ctx, obj, opts...)
	})
}

// ignores reports whether a write is not recorded.
func ignores(dryRun []string, disabled bool) bool { return len(dryRun) > 0 || disabled }

// write sends a write, and records it. The answer is in the object, which is a client.Object or an
// ApplyConfiguration.
func (c *Client) write(ctx context.Context, object any, ignored bool, send func(context.Context) error) error {
	return c.record(ctx, object, ignored, send, func(before *metadata) (*metadata, Write) {
		after := c.metadataOf(object)
		if after == nil {
			return before, Write{Unknown: true}
		}
		return after, answered(after)
	})
}

// record is write with a function that returns what the answer says, and of which object.
func (c *Client) record(ctx context.Context, object any, ignored bool, send func(context.Context) error,
	answer func(before *metadata) (*metadata, Write)) error {
	before := c.metadataOf(object)
	if ignored || before == nil {
		return send(ctx)
	}
	e := &exchange{}
	err := send(withExchange(ctx, e))
	if err == nil {
		c.add(answer(before))
	} else if isUnknown(e, err) {
		c.add(before, Write{Unknown: true})
	}
	return err
}

// isUnknown reports whether a request that failed may have changed something.
func isUnknown(e *exchange, err error) bool {
	var status apierrors.APIStatus
	if !e.sent || e.doubtful || !errors.As(err, &status) {
		return e.sent
	}
	return mayHaveChanged(int(status.Status().Code))
}

// add records a write. A version is what can be waited for: not all aggregated API servers have
// versions.
func (c *Client) add(object *metadata, write Write) {
	hasVersion := write.Version != "" || write.Gone || write.Unknown
	if writes := c.writes(); writes != nil && hasVersion {
		writes.Add(object.kind, c.keyOf(object), write)
	}
}

// keyOf returns the key of an object. A cluster-scoped one has no namespace, even if it says so.
func (c *Client) keyOf(object *metadata) types.NamespacedName {
	key := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	if key.Namespace == "" {
		return key
	}
	mapping, err := c.RESTMapper().RESTMapping(object.kind, object.version)
	if err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		key.Namespace = ""
	}
	return key
}

// metadata is of an object.
type metadata struct {
	kind    schema.GroupKind
	version string // of the API
	metav1.ObjectMeta
}

// metadataOf returns what is recorded of an object or an ApplyConfiguration; nil if it has no kind,
// which is an error of the request.
func (c *Client) metadataOf(object any) *metadata {
	switch o := object.(type) {
	case client.Object:
		gvk, err := c.GroupVersionKindFor(o)
		if err != nil {
			return nil
		}
		return &metadata{gvk.GroupKind(), gvk.Version, metav1.ObjectMeta{
			Namespace:                  o.GetNamespace(),
			Name:                       o.GetName(),
			UID:                        o.GetUID(),
			ResourceVersion:            o.GetResourceVersion(),
			Labels:                     o.GetLabels(),
			Finalizers:                 o.GetFinalizers(),
			DeletionTimestamp:          o.GetDeletionTimestamp(),
			DeletionGracePeriodSeconds: o.GetDeletionGracePeriodSeconds(),
		}}
	default: // a typed ApplyConfiguration has no common methods for all of that
		var partial metav1.PartialObjectMetadata
		text, err := json.Marshal(o)
		if err != nil || json.Unmarshal(text, &partial) != nil {
			return nil
		}
		gvk := partial.GroupVersionKind()
		return &metadata{gvk.GroupKind(), gvk.Version, partial.ObjectMeta}
	}
}

// answered returns what an answer says that is the object.
func answered(object *metadata) Write {
	w := Write{Object: Object{UID: object.UID, Version: object.ResourceVersion}, Labels: copyOf(object.Labels)}
	// The API server deletes an object that is being deleted when the last finalizer goes, and answers
	// with the object of the request. A Namespace may have finalizers elsewhere.
	if object.DeletionTimestamp != nil && len(object.Finalizers) == 0 {
		w.Unknown = object.DeletionGracePeriodSeconds == nil
		w.Gone = !w.Unknown && *object.DeletionGracePeriodSeconds == 0
	}
	return w
}

// Delete implements client.Writer.
func (c *Client) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	o := (&client.DeleteOptions{}).ApplyOptions(opts)
	given := c.metadataOf(object)
	if ignores(o.DryRun, o.DisableReadYourWritesConsistency) || given == nil {
		return c.Client.Delete(ctx, object, opts...)
	}
	known := []Object{{UID: given.UID, Version: given.ResourceVersion}}
	if writes := c.writes(); writes != nil {
		known = append(known, writes.Peek(given.kind, c.keyOf(given))...)
	}
	if o.Preconditions != nil {
		known = append(known, Object{
			UID:     ptr.Deref(o.Preconditions.UID, given.UID),
			Version: ptr.Deref(o.Preconditions.ResourceVersion, ""),
		})
	}
	e := &exchange{wantsAnswer: true}
	err := c.Client.Delete(withExchange(ctx, e), object, opts...)
	switch {
	case err == nil:
		c.add(given, deleted(e, known))
	case isUnknown(e, err):
		c.add(given, Write{Unknown: true})
	}
	return err
}

// deleted returns what the answer to a deletion says. known are the states of the object that were
// seen before.
func deleted(e *exchange, known []Object) Write {
	if e.answer == nil {
		return Write{Unknown: true}
	}
	answer, ok := readDeletion(e.answer.Bytes())
	if !ok || answer.isStatus() && (answer.Details == nil || answer.Details.UID == "") {
		return Write{Unknown: true}
	}
	if !answer.isStatus() {
		w := answered(&metadata{ObjectMeta: answer.Metadata})
		w.Gone = !w.Unknown && (w.Gone || answer.Metadata.DeletionTimestamp == nil)
		return w
	}
	w := Write{Gone: true, Object: Object{UID: answer.Details.UID}}
	for _, object := range known {
		if object.UID == w.UID {
			w.Version = versions.Later(w.Version, object.Version)
		}
	}
	return w
}

// DeleteAllOf implements client.Writer. Reads of the kind in that namespace go to the API server
// until the cache has the version of such a read.
func (c *Client) DeleteAllOf(ctx context.Context, object client.Object, opts ...client.DeleteAllOfOption) error {
	o := (&client.DeleteAllOfOptions{}).ApplyOptions(opts)
	given := c.metadataOf(object)
	disabled := o.DeleteOptions.DisableReadYourWritesConsistency || o.ListOptions.DisableReadYourWritesConsistency
	if ignores(o.DryRun, disabled) || given == nil {
		return c.Client.DeleteAllOf(ctx, object, opts...)
	}
	e := &exchange{}
	err := c.Client.DeleteAllOf(withExchange(ctx, e), object, opts...)
	if e.sent { // it may fail after it has deleted some
		given.Namespace, given.Name = o.Namespace, ""
		c.add(given, Write{Unknown: true})
	}
	return err
}
