package credential

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
	// Namespaced says whether the extensions have namespaces.
	Namespaced bool

	fields fieldSchema // of its objects; anything if they are not known
}

// KindOf asks the API server about an object's kind. If the kind is not served,
// meta.IsNoMatchError(err) is true; other errors mean that the scheme does not know the object, or
// that the API server did not answer. Fields are those of the Go type, or of the schema at
// /openapi/v3 if the object is unstructured. Where the schema cannot be had the log of ctx says so,
// and nothing is checked against it.
func KindOf(ctx context.Context, host cluster.Cluster, object client.Object) (Kind, error) {
	gvk, err := apiutil.GVKForObject(object, host.GetScheme())
	if err != nil {
		return Kind{}, errors.WithMessagef(err, "the kind of a %T", object)
	}
	mapping, err := host.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return Kind{}, err
	}
	kind := Kind{GroupVersionKind: gvk, Namespaced: mapping.Scope.Name() == meta.RESTScopeNameNamespace}
	if _, ok := object.(runtime.Unstructured); !ok {
		kind.fields = fieldsOf(reflect.TypeOf(object))
		return kind, nil
	}
	if kind.fields, err = publishedFields(ctx, host, gvk); err != nil {
		ctrl.LoggerFrom(ctx).Info("Field paths are not checked, for the kind's schema is not to be had", "kind", gvk,
			"error", err.Error())
		kind.fields = anything{}
	} else if spec, _ := kind.fields.field("spec"); spec == (anything{}) {
		ctrl.LoggerFrom(ctx).Info("Field paths are not checked, for the kind's schema lets its objects have any field",
			"kind", gvk)
	}
	return kind, nil
}

// schemaTimeout bounds the question for a schema.
const schemaTimeout = 10 * time.Second

// publishedFields are those that the API server publishes for a kind.
func publishedFields(ctx context.Context, host cluster.Cluster, gvk schema.GroupVersionKind) (fieldSchema, error) {
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

// fieldsInOpenAPI finds the kind in an OpenAPI v3 document.
func fieldsInOpenAPI(content []byte, gvk schema.GroupVersionKind) (fieldSchema, error) {
	var document struct {
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal(content, &document); err != nil {
		return nil, errors.Wrap(err, "parsing /openapi/v3")
	}
	for _, found := range document.Components.Schemas {
		kinds, _ := found["x-kubernetes-group-version-kind"].([]any)
		if slices.ContainsFunc(kinds, func(kind any) bool {
			named, _ := kind.(map[string]any)
			return named["group"] == gvk.Group && named["version"] == gvk.Version && named["kind"] == gvk.Kind
		}) {
			return fieldsOfSchema(found, document.Components.Schemas), nil
		}
	}
	return nil, errors.Errorf("/openapi/v3 does not have %s", gvk)
}

// fieldSchema is what is known of a value in API objects.
type fieldSchema interface {
	// field returns the value of that field, false if there is none.
	field(name string) (fieldSchema, bool)
	// names are those of all fields, sorted.
	names() []string
	// isText reports whether the value is a string.
	isText() bool
}

// anything is a value of which nothing is known.
type anything struct{}

func (anything) field(string) (fieldSchema, bool) { return anything{}, true }
func (anything) names() []string                  { return nil }
func (anything) isText() bool                     { return true }

// known is a value whose fields are known.
type known struct {
	text  bool
	named map[string]func() fieldSchema
	other func() fieldSchema // those of any other name; nil if there are none
}

func (k known) isText() bool { return k.text }

func (k known) field(name string) (fieldSchema, bool) {
	if value, ok := k.named[name]; ok {
		return value(), true
	}
	if k.other != nil {
		return k.other(), true
	}
	return nil, false
}

func (k known) names() (names []string) {
	for name := range k.named {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// fieldsOf are those of a Go type as encoding/json has them.
func fieldsOf(goType reflect.Type) fieldSchema {
	for goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	switch {
	case goType.Implements(marshaler), reflect.PointerTo(goType).Implements(marshaler),
		goType.Kind() == reflect.Interface:
		return anything{}
	case goType.Kind() == reflect.String:
		return known{text: true}
	case goType.Kind() == reflect.Map:
		return known{other: func() fieldSchema { return fieldsOf(goType.Elem()) }}
	case goType.Kind() == reflect.Struct:
		k := known{named: map[string]func() fieldSchema{}}
		k.addFieldsOf(goType)
		return k
	}
	return known{}
}

func (k known) addFieldsOf(goType reflect.Type) {
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
			k.named[name] = func() fieldSchema { return fieldsOf(field.Type) }
		}
	}
}

// fieldsOfSchema are those of an OpenAPI v3 schema.
func fieldsOfSchema(node map[string]any, all map[string]map[string]any) fieldSchema {
	for range 100 { // references, of which a broken document may have a circle
		if parts, ok := node["allOf"].([]any); ok && len(parts) == 1 && node["properties"] == nil {
			node, _ = parts[0].(map[string]any)
		}
		reference, ok := node["$ref"].(string)
		if !ok {
			break
		}
		node = all[strings.TrimPrefix(reference, "#/components/schemas/")]
	}
	sub := func(node any) func() fieldSchema {
		return func() fieldSchema {
			schema, _ := node.(map[string]any)
			return fieldsOfSchema(schema, all)
		}
	}
	k := known{text: node["type"] == "string", named: map[string]func() fieldSchema{}}
	properties, _ := node["properties"].(map[string]any)
	for name, property := range properties {
		k.named[name] = sub(property)
	}
	switch more := node["additionalProperties"].(type) {
	case map[string]any:
		k.other = sub(more)
	case bool:
		if more {
			k.other = func() fieldSchema { return anything{} }
		}
	}
	lax := node["x-kubernetes-preserve-unknown-fields"] == true || node["x-kubernetes-embedded-resource"] == true
	switch {
	case lax && len(k.named) > 0:
		k.other = func() fieldSchema { return anything{} }
	case lax, node["x-kubernetes-int-or-string"] == true, node["type"] == nil && len(k.named) == 0 && k.other == nil:
		return anything{}
	}
	return k
}

// path splits the dotted path of an option and checks that the kind has such a field, with a text
// in it. A leading dot, as kubectl and CRDs write it, is allowed.
func (k Kind) path(option, dotted string) ([]string, error) {
	path, err := fieldPath(dotted)
	if err != nil {
		return nil, errors.WithMessage(err, option)
	}
	value := k.root()
	for i, name := range path {
		next, found := value.field(name)
		if !found {
			where := "it"
			if i > 0 {
				where = strings.Join(path[:i], ".")
			}
			has := "no fields"
			if names := value.names(); len(names) > 0 {
				has = strings.Join(names, ", ")
			}
			return nil,
				errors.Errorf("%s: %s has no field %s (%s has %s)", option, k.name(), strings.Join(path, "."), where, has)
		}
		value = next
	}
	if !value.isText() {
		return nil, errors.Errorf("%s: field %s of %s is no string", option, strings.Join(path, "."), k.name())
	}
	return path, nil
}

// root is what is known of an object of the kind.
func (k Kind) root() fieldSchema {
	if k.fields == nil {
		return anything{}
	}
	return k.fields
}

// field returns what is known of a field of an object of the kind, false if there is none.
func (k Kind) field(name string) (fieldSchema, bool) { return k.root().field(name) }

// declares reports whether the kind is known to have that field.
func (k Kind) declares(path ...string) bool {
	value := k.fields
	for _, name := range path {
		inner, ok := value.(known)
		if !ok || inner.named[name] == nil {
			return false
		}
		value = inner.named[name]()
	}
	return true
}

// name is the kind for people.
func (k Kind) name() string {
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
