package apiserver

import (
	"context"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// getVerb implements rest.Getter.
type getVerb[T, TList runtime.Object] struct{ store *storage[T, TList] }

func (v getVerb[T, TList]) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	object, err := v.store.getter.Get(v.store.context(ctx), name, options)
	if err != nil {
		return nil, statusOf(err)
	}
	return object, nil
}

// watchVerb implements rest.Watcher.
type watchVerb[T, TList runtime.Object] struct{ store *storage[T, TList] }

func (v watchVerb[T, TList]) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	external, err := externalListOptions(options)
	if err != nil {
		return nil, err
	}
	sent := v.store.context(ctx)
	release, err := v.store.watches.begin(sent.User.GetName())
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, maxWatchTime)
	begun := false
	defer func() { // also if the store panics
		if !begun {
			cancel()
			release()
		}
	}()
	sent.Context = limited
	events, err := v.store.watcher.Watch(sent, external)
	if err != nil {
		return nil, statusOf(err)
	}
	begun = true
	f := forward(limited, cancel, release, events)
	// The library calls Stop only of watches that it serves, and not if it refuses the request after
	// all.
	context.AfterFunc(ctx, func() {
		if !f.served.Load() {
			f.Stop()
		}
	})
	return f, nil
}

// createVerb implements rest.Creater.
type createVerb[T, TList runtime.Object] struct{ store *storage[T, TList] }

func (v createVerb[T, TList]) Create(ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	return v.store.create(ctx, object, validate, options)
}

func (s *storage[T, TList]) create(ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	metadata := accessorOf(object)
	if metadata.GetGenerateName() != "" && metadata.GetName() == "" {
		metadata.SetName(names.SimpleNameGenerator.GenerateName(metadata.GetGenerateName()))
	}
	rest.WipeObjectMetaSystemFields(metadata)
	rest.FillObjectMetaSystemFields(metadata)
	if problems := validation.ValidateObjectMetaAccessor(metadata, s.options.namespaced, validation.NameIsDNSSubdomain,
		field.NewPath("metadata")); len(problems) > 0 {
		return nil, apierrors.NewInvalid(s.gvk.GroupKind(), metadata.GetName(), problems)
	}
	if metadata.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion must not be set on objects to be created")
	}
	if validate != nil {
		if err := validate(ctx, object.DeepCopyObject()); err != nil {
			return nil, statusOf(err)
		}
	}
	created, err := s.creater.Create(s.context(ctx), object.(T), options)
	if err != nil {
		return nil, statusOf(err)
	}
	return created, nil
}

// updateVerb implements rest.Updater.
type updateVerb[T, TList runtime.Object] struct{ store *storage[T, TList] }

// maxTries is how often an update is tried that other writers overtake.
const maxTries = 5

// Update changes an object, or creates it if it does not exist and the store can. validateCreate
// also checks that the user may create. The library computes a patch again for each try.
func (v updateVerb[T, TList]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, _ bool,
	options *metav1.UpdateOptions) (stored runtime.Object, created bool, err error) {
	s := v.store
	for try, overtaken := 0, true; overtaken && try < maxTries && ctx.Err() == nil; try++ {
		var existing T
		existing, err = s.getter.Get(s.context(ctx), name, &metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && s.creater != nil:
			created = true
			stored, err = s.createByUpdate(ctx, name, info, validateCreate, options)
			overtaken = apierrors.IsAlreadyExists(err)
		case err == nil:
			created = false
			stored, overtaken, err = s.update(ctx, existing, info, validateUpdate, options)
		default:
			overtaken = false
		}
	}
	if err == nil && stored == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, false, statusOf(err)
	}
	return stored, created, nil
}

// update changes an object. If another writer has changed it since it was read, overtaken is true.
func (s *storage[T, TList]) update(ctx context.Context, existing T, info rest.UpdatedObjectInfo,
	validate rest.ValidateObjectUpdateFunc, options *metav1.UpdateOptions) (stored runtime.Object, overtaken bool,
	err error) {
	if accessorOf(existing).GetUID() == "" { // the library takes such an object for one that does not exist
		return nil, false, apierrors.NewInternalError(errors.Errorf("the store's %s %s has no UID", s.singular,
			accessorOf(existing).GetName()))
	}
	if err := s.checkPreconditions(existing, info.Preconditions()); err != nil {
		return nil, false, err
	}
	before := existing.DeepCopyObject()
	updated, err := info.UpdatedObject(ctx, existing.DeepCopyObject())
	if err != nil {
		return nil, false, err
	}
	if err := s.keepSystemFields(updated, before); err != nil {
		return nil, false, err
	}
	if validate != nil {
		if err := validate(ctx, updated.DeepCopyObject(), before); err != nil {
			return nil, false, err
		}
	}
	read, wanted := accessorOf(before).GetResourceVersion(), accessorOf(updated)
	if version := wanted.GetResourceVersion(); version != "" && version != read {
		return nil, false, apierrors.NewConflict(s.groupResource(), wanted.GetName(),
			preconditionError{"resourceVersion", version, read})
	}
	wanted.SetResourceVersion(read) // so that the store changes what was checked, and nothing newer
	changed, err := s.updater.Update(s.context(ctx), updated.(T), options)
	if err != nil {
		return nil, apierrors.IsConflict(err), err
	}
	return changed, false, nil
}

// createByUpdate creates the object of an update. An update of an object that was read before, and
// that was deleted since, does not bring the object back.
func (s *storage[T, TList]) createByUpdate(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	validate rest.ValidateObjectFunc, options *metav1.UpdateOptions) (runtime.Object, error) {
	wanted, err := info.UpdatedObject(ctx, s.New())
	if err != nil {
		return nil, err
	}
	metadata, preconditions := accessorOf(wanted), info.Preconditions()
	if metadata.GetResourceVersion() != "" || metadata.GetUID() != "" ||
		preconditions != nil && (preconditions.UID != nil || preconditions.ResourceVersion != nil) {
		return nil, apierrors.NewNotFound(s.groupResource(), name)
	}
	return s.create(ctx, wanted, validate, &metav1.CreateOptions{
		DryRun:          options.DryRun,
		FieldManager:    options.FieldManager,
		FieldValidation: options.FieldValidation,
	})
}

// keepSystemFields sets the fields that no update changes.
func (s *storage[T, TList]) keepSystemFields(updated, before runtime.Object) error {
	now, was := accessorOf(updated), accessorOf(before)
	if uid := now.GetUID(); uid != "" && uid != was.GetUID() {
		return apierrors.NewConflict(s.groupResource(), was.GetName(), preconditionError{"UID", string(uid),
			string(was.GetUID())})
	}
	now.SetUID(was.GetUID())
	now.SetCreationTimestamp(was.GetCreationTimestamp())
	now.SetDeletionTimestamp(was.GetDeletionTimestamp())
	now.SetDeletionGracePeriodSeconds(was.GetDeletionGracePeriodSeconds())
	if problems := validation.ValidateObjectMetaAccessor(now, s.options.namespaced, validation.NameIsDNSSubdomain,
		field.NewPath("metadata")); len(problems) > 0 {
		return apierrors.NewInvalid(s.gvk.GroupKind(), now.GetName(), problems)
	}
	return nil
}

func (s *storage[T, TList]) checkPreconditions(object runtime.Object, preconditions *metav1.Preconditions) error {
	if preconditions == nil {
		return nil
	}
	metadata := accessorOf(object)
	if uid := preconditions.UID; uid != nil && *uid != metadata.GetUID() {
		return apierrors.NewConflict(s.groupResource(), metadata.GetName(),
			preconditionError{"UID", string(*uid), string(metadata.GetUID())})
	}
	if version := preconditions.ResourceVersion; version != nil && *version != metadata.GetResourceVersion() {
		return apierrors.NewConflict(s.groupResource(), metadata.GetName(),
			preconditionError{"resourceVersion", *version, metadata.GetResourceVersion()})
	}
	return nil
}

// preconditionError says which precondition does not hold.
type preconditionError struct{ field, wanted, found string }

func (e preconditionError) Error() string {
	return "the precondition is " + e.field + " " + e.wanted + ", and the object has " + e.found
}

// deleteVerb implements rest.GracefulDeleter.
type deleteVerb[T, TList runtime.Object] struct{ store *storage[T, TList] }

func (v deleteVerb[T, TList]) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	s := v.store
	existing, err := s.getter.Get(s.context(ctx), name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, statusOf(err)
	}
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if err := s.checkPreconditions(existing, options.Preconditions); err != nil {
		return nil, false, err
	}
	if validate != nil {
		if err := validate(ctx, existing.DeepCopyObject()); err != nil {
			return nil, false, statusOf(err)
		}
	}
	if err := s.deleter.Delete(s.context(ctx), name, options); err != nil {
		return nil, false, statusOf(err)
	}
	return existing, true, nil
}
