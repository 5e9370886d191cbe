package scopedcache

import (
	"context"
	"reflect"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
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
	scope := Scope{Namespace: key.Namespace}
	if len(k.config.namespaces) > 0 {
		if scope.Namespace, err = r.configuredNamespace(ctx, k, key.Namespace); err != nil {
			return err
		}
	}
	mapping := k.mapping.Load()
	config := (&selection{kind: k, scope: scope}).configOf(mapping)
	if !knowsFields(config.FieldSelector) {
		return forbidden
	}
	if !isPathSegment(key.Name) || namespaced && !isPathSegment(key.Namespace) {
		return k.notFound(key)
	}
	if err := r.mayGet(ctx, k, mapping, key, forbidden); err != nil {
		return err
	}
	object := reflect.New(reflect.TypeOf(k.example).Elem()).Interface().(client.Object)
	r.env.options.OnLiveGet()
	err = r.env.clients.Get(ctx, listwatch.Resource{Mapping: mapping, Example: k.example, Namespace: key.Namespace},
		key.Name, object)
	if apierrors.IsForbidden(err) && access.FromServer(err) {
		r.entries.names.remember(nameQuestion{kind: k.kindKey, namespace: key.Namespace, name: key.Name, get: true}, false)
	}
	if err != nil {
		return r.liveError(k, key, err)
	}
	if !isOf(object, key, k.gvk.Kind) {
		return errors.Errorf("the API server answered a Get of %s %s with something else", k.gvk, key)
	}
	r.markLive(k, scope.Namespace)
	return copySelected(k, config, key, object, out)
}

// isPathSegment reports whether a name can be that of an object. Others would change the path of
// the request.
func isPathSegment(name string) bool { return name != "" && len(content.IsPathSegmentName(name)) == 0 }

func (k *kind) notFound(key client.ObjectKey) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: k.gvk.Group, Resource: k.gvk.Kind}, key.Name)
}

// isOf reports whether an answer is the object that was asked for. Typed ones say no kind.
func isOf(object client.Object, key client.ObjectKey, kind string) bool {
	stated := object.GetObjectKind().GroupVersionKind().Kind
	return object.GetName() == key.Name && object.GetNamespace() == key.Namespace &&
		(stated == "" || stated == kind || stated == "PartialObjectMetadata")
}

// liveError returns the error of a Get in the form in which users see it. A 404 that is not about
// the object means that the kind is not served.
func (r *reader) liveError(k *kind, key client.ObjectKey, err error) error {
	hide := r.env.options.HideServerMessages
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return r.readError(err)
	}
	if !apierrors.IsNotFound(err) {
		return displayError(err, hide)
	}
	if details := status.Status().Details; details == nil || details.Name == "" || apierrors.IsUnexpectedServerError(err) {
		return errors.WithMessage(&meta.NoKindMatchError{
			GroupKind:        k.gvk.GroupKind(),
			SearchedVersions: []string{k.gvk.Version},
		}, displayError(err, hide).Error())
	}
	return k.notFound(key)
}

// copySelected copies an object as the cache would have stored it. An object that the cache's
// options do not select is not found.
func copySelected(k *kind, config cache.Config, key client.ObjectKey, object, out client.Object) error {
	selected := (config.LabelSelector == nil || config.LabelSelector.Matches(labels.Set(object.GetLabels()))) &&
		(config.FieldSelector == nil || config.FieldSelector.Matches(fields.Set{
			nameField:      key.Name,
			namespaceField: key.Namespace,
		}))
	if !selected {
		return k.notFound(key)
	}
	var stored any = object
	if transform := transformOf(k, config.Transform); transform != nil {
		var err error
		if stored, err = transform(object); err != nil {
			return errors.Wrapf(err, "the transform of %s", k.gvk)
		}
	}
	target, source := reflect.ValueOf(out), reflect.ValueOf(stored)
	if !source.IsValid() || !source.Type().AssignableTo(target.Type()) {
		return errors.Errorf("the transform of %s returned a %T, not a %s", k.gvk, stored, target.Type())
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

// mayGet returns nil if the identity may get an object, or if that cannot be asked: then the answer
// to the Get counts. The API server is asked once about all objects of the namespace, and if that
// is denied, about each name.
func (r *reader) mayGet(ctx context.Context, k *kind, mapping *meta.RESTMapping, key client.ObjectKey,
	forbidden error) error {
	names := r.entries.names
	all := nameQuestion{kind: k.kindKey, namespace: key.Namespace, get: true}
	one := all
	one.name = key.Name
	if allowed, known := names.answer(one); known && !allowed {
		return forbidden // the API server may have said so itself
	}
	for _, q := range []nameQuestion{all, one} {
		allowed, known := names.answer(q)
		if !known {
			if q.name != "" && !r.user.asked.Allow() {
				return forbidden
			}
			question := access.Question{Mapping: mapping, Namespace: key.Namespace, Name: q.name}
			if mapping.Resource.GroupResource() == (schema.GroupResource{Resource: "namespaces"}) {
				question.Namespace = q.name // as the API server does, so that a Role in the namespace suffices
			}
			verdict, err := r.env.reviewer.Review(ctx, question, "get")
			if verdict != monitor.Allowed && verdict != monitor.Unaskable && !verdict.IsDenial() {
				return errors.WithMessage(err, "asking whether a Get may go to the API server")
			}
			allowed = !verdict.IsDenial()
			names.remember(q, allowed)
		}
		if allowed {
			return nil
		}
	}
	return forbidden
}

// liveUse is how Gets in a namespace go to the API server.
type liveUse struct{ since, last time.Time }

// markLive records that Gets in a namespace go to the API server instead of the scope that would
// serve them.
func (r *reader) markLive(k *kind, namespace string) {
	of := r.unselected(k, namespace)
	if of == nil {
		return
	}
	e := of.entry
	now := time.Now()
	use := &liveUse{since: now, last: now}
	before := e.live.Load()
	if began := before != nil && e.isLive(before, now); began {
		use.since = before.since
		e.live.CompareAndSwap(before, use)
	} else if e.live.CompareAndSwap(before, use) {
		r.user.changed()
	}
}

// isLive reports whether a Get went to the API server lately: within the time in which a permission
// may be remembered.
func (s *entry) isLive(use *liveUse, now time.Time) bool {
	return now.Sub(use.last) < 2*s.env.options.AccessReviewInterval
}

// asLive returns a snapshot of the scope in which reads see it: if Gets go to the API server, it is
// Live, unless a holder needs the informer that there is not.
func (s *entry) asLive(now ScopeState) ScopeState {
	use := s.live.Load()
	if use != nil && s.isLive(use, time.Now()) && now.State == StateForbidden && len(now.Dependents) == 0 {
		now.State, now.Since = StateLive, use.since
	}
	return now
}
