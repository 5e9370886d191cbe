package scopedcache

import (
	"context"
	"reflect"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/access"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/listwatch"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// getLive gets an object from the API server, for the case that no informer may serve the read:
// forbidden says why. getLive returns forbidden if the identity may not get the object either.
func (r *reader) getLive(ctx context.Context, k *kind, key client.ObjectKey, out client.Object, forbidden error) error {
	namespaced, err := r.namespaced(ctx, k)
	if err != nil {
		return err
	}
	if !namespaced {
		key.Namespace = metav1.NamespaceAll
	}
	mapping := k.mapping.Load()
	config := (&selection{kind: k, scope: Scope{Namespace: key.Namespace}}).configOf(mapping)
	if !knowsFields(config.FieldSelector) {
		return forbidden
	}
	if err := r.mayGet(ctx, k, mapping, key, forbidden); err != nil {
		return err
	}
	object := reflect.New(reflect.TypeOf(k.example).Elem()).Interface().(client.Object)
	r.env.options.OnLiveGet()
	err = r.env.clients.Get(ctx, listwatch.Resource{Mapping: mapping, Example: k.example, Namespace: key.Namespace},
		key.Name, object)
	if apierrors.IsForbidden(err) && access.FromServer(err) {
		r.entries.names.forget(key.Namespace)
		r.entries.names.remember(nameQuestion{kind: k.kindKey, namespace: key.Namespace, name: key.Name, get: true}, false)
	}
	if err != nil {
		return displayError(err, r.env.options.HideServerMessages)
	}
	r.markLive(k, key.Namespace)
	return copySelected(k, config, object, out)
}

// copySelected copies an object as the cache would have stored it. An object that the cache's
// options do not select is not found.
func copySelected(k *kind, config cache.Config, object, out client.Object) error {
	selected := (config.LabelSelector == nil || config.LabelSelector.Matches(labels.Set(object.GetLabels()))) &&
		(config.FieldSelector == nil || config.FieldSelector.Matches(fields.Set{
			nameField:      object.GetName(),
			namespaceField: object.GetNamespace(),
		}))
	if !selected {
		return apierrors.NewNotFound(schema.GroupResource{Group: k.gvk.Group, Resource: k.gvk.Kind}, object.GetName())
	}
	var stored any = object
	if transform := transformOf(k, config.Transform); transform != nil {
		var err error
		if stored, err = transform(object); err != nil {
			return errors.Wrapf(err, "the transform of %s", k.gvk)
		}
	}
	target, source := reflect.ValueOf(out), reflect.ValueOf(stored)
	if !source.Type().AssignableTo(target.Type()) {
		return errors.Errorf("the cache has %s as %s, not as %s", k.gvk, source.Type(), target.Type())
	}
	target.Elem().Set(source.Elem())
	out.GetObjectKind().SetGroupVersionKind(k.gvk)
	return nil
}

// knowsFields reports whether each field of a selector can be compared here. Only the API server
// knows the others.
func knowsFields(selector fields.Selector) bool {
	if selector == nil {
		return true
	}
	for _, requirement := range selector.Requirements() {
		if requirement.Field != nameField && requirement.Field != namespaceField {
			return false
		}
	}
	return true
}

// mayGet returns nil if the identity may get an object, or if that cannot be asked. The API server
// is asked once about all objects of the namespace, and if that is denied, about each name.
func (r *reader) mayGet(ctx context.Context, k *kind, mapping *meta.RESTMapping, key client.ObjectKey,
	forbidden error) error {
	names := r.entries.names
	for _, name := range []string{"", key.Name} {
		q := nameQuestion{kind: k.kindKey, namespace: key.Namespace, name: name, get: true}
		allowed, known := names.answer(q)
		if !known {
			if name != "" && !names.mayAsk(ctx) {
				return forbidden
			}
			verdict, err := r.env.reviewer.Review(ctx, access.Question{
				Mapping:   mapping,
				Namespace: key.Namespace,
				Name:      name,
			}, "get")
			switch {
			case verdict == monitor.Unaskable:
				return nil
			case verdict != monitor.Allowed && !verdict.IsDenial():
				return errors.WithMessage(err, "asking whether a Get may go to the API server")
			}
			allowed = verdict == monitor.Allowed
			names.remember(q, allowed)
		}
		if allowed {
			return nil
		}
	}
	return forbidden
}

// markLive records that Gets in a namespace go to the API server, as long as the scope that would
// serve them is Forbidden.
func (r *reader) markLive(k *kind, namespace string) {
	e := k.unselected(namespace)
	if e == nil || e.live.Load() != nil {
		return
	}
	now := time.Now()
	if e.live.CompareAndSwap(nil, &now) {
		r.entries.changed()
	}
}

// asLive returns a snapshot of the scope in which reads see it: if Gets go to the API server, it is
// Live, unless a holder needs the informer that there is not.
func (s *entry) asLive(now ScopeState) ScopeState {
	since := s.live.Load()
	if since != nil && now.State == StateForbidden && len(now.Dependents) == 0 {
		now.State, now.Since = StateLive, *since
	}
	return now
}
