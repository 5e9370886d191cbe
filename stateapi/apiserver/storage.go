package apiserver

import (
	"context"
	"reflect"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// storage is the part of the library's storage that every store has. verbs.go adds the rest.
type storage[T, TList runtime.Object] struct {
	gvk        schema.GroupVersionKind
	resource   string
	singular   string
	options    storeOptions
	authorizer authorizer.Authorizer
	watches    *watchLimit // of the server
	table      tableConvertor

	lister  Lister[TList]
	getter  Getter[T]
	watcher Watcher[T]
	creater Creater[T]
	updater Updater[T]
	deleter Deleter
	starter Starter // may be nil
}

func (s *storage[T, TList]) beginServing() {
	if s.starter != nil {
		s.starter.BeginServing()
	}
}

// newObject returns an empty object. T is a pointer to a struct.
func newObject[T runtime.Object]() T {
	return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
}

func (s *storage[T, TList]) New() runtime.Object     { return newObject[T]() }
func (s *storage[T, TList]) NewList() runtime.Object { return newObject[TList]() }
func (s *storage[T, TList]) Destroy()                {}
func (s *storage[T, TList]) NamespaceScoped() bool   { return s.options.namespaced }
func (s *storage[T, TList]) GetSingularName() string { return s.singular }
func (s *storage[T, TList]) ShortNames() []string    { return s.options.shortNames }
func (s *storage[T, TList]) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: s.gvk.Group, Resource: s.resource}
}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (s *storage[T, TList]) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return s.gvk
}

// ConvertToTable implements rest.TableConvertor.
func (s *storage[T, TList]) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return s.table.convert(ctx, object, options)
}

// List implements rest.Lister.
func (s *storage[T, TList]) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	external, err := externalListOptions(options)
	if err != nil {
		return nil, err
	}
	list, err := s.lister.List(s.context(ctx), external)
	if err != nil {
		return nil, statusOf(err)
	}
	return list, nil
}

// context returns what the store gets to know about a request.
func (s *storage[T, TList]) context(ctx context.Context) Context {
	sender, ok := request.UserFrom(ctx)
	if !ok { // the library authenticates every request
		sender = &user.DefaultInfo{}
	}
	return Context{
		Context:              ctx,
		User:                 sender,
		Authorizer:           s.authorizer,
		Namespace:            request.NamespaceValue(ctx),
		GroupVersionResource: s.gvk.GroupVersion().WithResource(s.resource),
	}
}

func externalListOptions(options *internalversion.ListOptions) (*metav1.ListOptions, error) {
	external := &metav1.ListOptions{}
	if options == nil {
		return external, nil
	}
	return external, errors.Wrap(internalversion.Convert_internalversion_ListOptions_To_v1_ListOptions(options, external,
		nil), "converting the options")
}

// accessorOf returns the metadata of an object. Every T has metadata, which InstallStore checks.
func accessorOf(object runtime.Object) metav1.Object {
	accessor, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	return accessor
}

var (
	_ rest.Storage                  = &storage[runtime.Object, runtime.Object]{}
	_ rest.Lister                   = &storage[runtime.Object, runtime.Object]{}
	_ rest.Scoper                   = &storage[runtime.Object, runtime.Object]{}
	_ rest.SingularNameProvider     = &storage[runtime.Object, runtime.Object]{}
	_ rest.ShortNamesProvider       = &storage[runtime.Object, runtime.Object]{}
	_ rest.GroupVersionKindProvider = &storage[runtime.Object, runtime.Object]{}
)
