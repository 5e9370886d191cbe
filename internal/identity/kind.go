package identity

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// Kind is the kind of the extensions, against which a Provider checks its options.
type Kind struct {
	// GroupVersionKind of the extensions.
	schema.GroupVersionKind
	// Resource is the resource of the kind.
	Resource schema.GroupResource
	// Namespaced reports whether the kind is namespaced.
	Namespaced bool

	Fields FieldSchema // of the kind's objects; nil or anything if unknown
}

// KindOf returns the Kind of object, which it requests from the API server. The fields come from
// the Go type, or from the schema at /openapi/v3 if the object is unstructured. If the schema is
// not available, KindOf logs this with the logger of ctx, and field paths are not checked.
//
// If the API server does not serve the kind, meta.IsNoMatchError(err) is true. Any other error
// means that the scheme does not know the object, or that the API server did not respond.
func KindOf(ctx context.Context, host cluster.Cluster, object client.Object) (Kind, error) {
	gvk, err := apiutil.GVKForObject(object, host.GetScheme())
	if err != nil {
		return Kind{}, errors.WithMessagef(err, "the kind of a %T, which must be in the scheme of the manager, or of "+
			"Options.Cluster (AddToScheme)", object)
	}
	mapping, err := host.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return Kind{}, err
	}
	kind := Kind{
		GroupVersionKind: gvk,
		Resource:         mapping.Resource.GroupResource(),
		Namespaced:       mapping.Scope.Name() == meta.RESTScopeNameNamespace,
	}
	if _, ok := object.(runtime.Unstructured); !ok {
		kind.Fields = FieldsOf(reflect.TypeOf(object))
		return kind, nil
	}
	if kind.Fields, err = publishedFields(ctx, host, gvk); err != nil {
		ctrl.LoggerFrom(ctx).Info("Field paths are not checked: the kind's schema is not available", "kind", gvk,
			"error", err.Error())
		kind.Fields = Anything{}
	} else if spec, _ := kind.Fields.field("spec"); spec == (Anything{}) {
		ctrl.LoggerFrom(ctx).Info("Field paths are not checked: the kind's schema accepts any field",
			"kind", gvk)
	}
	return kind, nil
}

// schemaTimeout limits the request for a schema.
const schemaTimeout = 10 * time.Second

// publishedFields returns the fields of a kind from the API server's OpenAPI document.
func publishedFields(ctx context.Context, host cluster.Cluster, gvk schema.GroupVersionKind) (FieldSchema, error) {
	ctx, cancel := context.WithTimeout(ctx, schemaTimeout)
	defer cancel()
	client, err := discovery.NewDiscoveryClientForConfigAndClient(host.GetConfig(), host.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	path := "/openapi/v3/apis/" + gvk.GroupVersion().String()
	if gvk.Group == "" {
		path = "/openapi/v3/api/" + gvk.Version
	}
	content, err := client.RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	return fieldsInOpenAPI(content, gvk)
}

// fieldsInOpenAPI returns the fields of a kind from an OpenAPI v3 document.
func fieldsInOpenAPI(content []byte, gvk schema.GroupVersionKind) (FieldSchema, error) {
	var document struct {
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal(content, &document); err != nil {
		return nil, errors.Wrap(err, "parsing /openapi/v3")
	}
	for _, found := range document.Components.Schemas {
		kinds, _ := found["x-kubernetes-group-version-kind"].([]any)
		if slices.ContainsFunc(kinds, func(kind any) bool {
			declared, _ := kind.(map[string]any)
			return declared["group"] == gvk.Group && declared["version"] == gvk.Version && declared["kind"] == gvk.Kind
		}) {
			return fieldsOfSchema(found, document.Components.Schemas), nil
		}
	}
	return nil, errors.Errorf("/openapi/v3 does not have %s", gvk)
}

// FieldSchema describes a value in API objects.
type FieldSchema interface {
	// field returns the schema of the named field, false if there is no such field.
	field(name string) (FieldSchema, bool)
	// names returns the names of all known fields, sorted.
	names() []string
	// isText reports whether the value is a string.
	isText() bool
}

// Anything describes a value with an unknown schema.
type Anything struct{}

func (Anything) field(string) (FieldSchema, bool) { return Anything{}, true }
func (Anything) names() []string                  { return nil }
func (Anything) isText() bool                     { return true }

// KnownFields describes a value with a known schema.
type KnownFields struct {
	Text   bool
	ByName map[string]func() FieldSchema
	Rest   func() FieldSchema // fields with any other name; nil if not allowed
}

func (k KnownFields) isText() bool { return k.Text }

func (k KnownFields) field(name string) (FieldSchema, bool) {
	if value, ok := k.ByName[name]; ok {
		return value(), true
	}
	if k.Rest != nil {
		return k.Rest(), true
	}
	return nil, false
}

func (k KnownFields) names() (names []string) {
	for name := range k.ByName {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// FieldsOf returns the fields of a Go type as encoding/json names them.
func FieldsOf(goType reflect.Type) FieldSchema {
	for goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	switch {
	case goType.Implements(marshaler), reflect.PointerTo(goType).Implements(marshaler),
		goType.Kind() == reflect.Interface:
		return Anything{}
	case goType.Kind() == reflect.String:
		return KnownFields{Text: true}
	case goType.Kind() == reflect.Map:
		return KnownFields{Rest: func() FieldSchema { return FieldsOf(goType.Elem()) }}
	case goType.Kind() == reflect.Struct:
		k := KnownFields{ByName: map[string]func() FieldSchema{}}
		k.addFieldsOf(goType)
		return k
	}
	return KnownFields{}
}

func (k KnownFields) addFieldsOf(goType reflect.Type) {
	for i := range goType.NumField() {
		field := goType.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		embedded := field.Type
		if embedded.Kind() == reflect.Pointer {
			embedded = embedded.Elem()
		}
		switch {
		case name == "-":
		case field.Anonymous && name == "" && embedded.Kind() == reflect.Struct:
			k.addFieldsOf(embedded)
		case field.IsExported():
			if name == "" {
				name = field.Name
			}
			k.ByName[name] = func() FieldSchema { return FieldsOf(field.Type) }
		}
	}
}

// fieldsOfSchema returns the fields of an OpenAPI v3 schema.
func fieldsOfSchema(node map[string]any, all map[string]map[string]any) FieldSchema {
	for range 100 { // limits references, which may form a cycle in an invalid document
		if parts, ok := node["allOf"].([]any); ok && len(parts) == 1 && node["properties"] == nil {
			node, _ = parts[0].(map[string]any)
		}
		reference, ok := node["$ref"].(string)
		if !ok {
			break
		}
		node = all[strings.TrimPrefix(reference, "#/components/schemas/")]
	}
	sub := func(node any) func() FieldSchema {
		return func() FieldSchema {
			schema, _ := node.(map[string]any)
			return fieldsOfSchema(schema, all)
		}
	}
	k := KnownFields{Text: node["type"] == "string", ByName: map[string]func() FieldSchema{}}
	properties, _ := node["properties"].(map[string]any)
	for name, property := range properties {
		k.ByName[name] = sub(property)
	}
	switch more := node["additionalProperties"].(type) {
	case map[string]any:
		k.Rest = sub(more)
	case bool:
		if more {
			k.Rest = func() FieldSchema { return Anything{} }
		}
	}
	lax := node["x-kubernetes-preserve-unknown-fields"] == true || node["x-kubernetes-embedded-resource"] == true
	switch {
	case lax && len(k.ByName) > 0:
		k.Rest = func() FieldSchema { return Anything{} }
	case lax, node["x-kubernetes-int-or-string"] == true, node["type"] == nil && len(k.ByName) == 0 && k.Rest == nil:
		return Anything{}
	}
	return k
}

// Path splits the dotted path of an option. The path may have a leading dot, as in kubectl and
// CRDs. An error means that the kind has no such field, or that the field is not a string.
func (k Kind) Path(option, dotted string) ([]string, error) {
	path, err := fieldPath(dotted)
	if err != nil {
		return nil, errors.WithMessage(err, option)
	}
	value := k.root()
	for i, name := range path {
		next, found := value.field(name)
		if !found {
			place := "it"
			if i > 0 {
				place = strings.Join(path[:i], ".")
			}
			has := "no fields"
			if names := value.names(); len(names) > 0 {
				has = strings.Join(names, ", ")
			}
			return nil,
				errors.Errorf("%s: %s has no field %s (%s has %s)", option, k.Name(), strings.Join(path, "."), place, has)
		}
		value = next
	}
	if !value.isText() {
		return nil, errors.Errorf("%s: field %s of %s is not a string", option, strings.Join(path, "."), k.Name())
	}
	return path, nil
}

// root returns the schema of an object of the kind.
func (k Kind) root() FieldSchema {
	if k.Fields == nil {
		return Anything{}
	}
	return k.Fields
}

// Field returns the schema of a field of an object of the kind, false if there is no such field.
func (k Kind) Field(name string) (FieldSchema, bool) { return k.root().field(name) }

// Declares reports whether the kind's schema is known and declares the field at path.
func (k Kind) Declares(path ...string) bool {
	value := k.Fields
	for _, name := range path {
		inner, ok := value.(KnownFields)
		if !ok || inner.ByName[name] == nil {
			return false
		}
		value = inner.ByName[name]()
	}
	return true
}

// Name returns the kind for log and error messages.
func (k Kind) Name() string {
	return k.GroupKind().String()
}

// fieldPath splits a dotted path.
func fieldPath(dotted string) ([]string, error) {
	if strings.ContainsAny(dotted, "{}") {
		return nil,
			errors.Errorf("%q is no dotted path to a field; write it without braces, as spec.serviceAccount.name", dotted)
	}
	path := strings.Split(strings.TrimPrefix(dotted, "."), ".")
	for _, field := range path {
		if field == "" {
			return nil, errors.Errorf("%q is no dotted path to a field", dotted)
		}
	}
	return path, nil
}
