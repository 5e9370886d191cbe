package apiserver

import (
	"strings"

	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// sharedModels is the beginning of the names of the definitions that every API uses.
const sharedModels = "io.k8s.apimachinery."

// withSharedDefinitions adds the definitions of metav1 to those of the installed types. Types have
// the name that their method OpenAPIModelName returns, or else the path of the type, and generated
// definitions refer to each other by either. The result refers by model names only.
func withSharedDefinitions(own openapicommon.GetOpenAPIDefinitions) openapicommon.GetOpenAPIDefinitions {
	return func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		definitions := map[string]openapicommon.OpenAPIDefinition{}
		for name, definition := range apiextensionsopenapi.GetOpenAPIDefinitions(ref) {
			if strings.HasPrefix(name, sharedModels) {
				definitions[name] = definition
			}
		}
		for name, definition := range own(func(name string) spec.Ref { return ref(modelName(name)) }) {
			for i, dependency := range definition.Dependencies {
				definition.Dependencies[i] = modelName(dependency)
			}
			// The library looks for a type without OpenAPIModelName by its path.
			definitions[name], definitions[modelName(name)] = definition, definition
		}
		return definitions
	}
}

// modelName returns the name of the model of a type: for the path of a type, its domain turned
// round.
func modelName(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}

// definitionNames names the definitions of a scheme's types.
type definitionNames struct {
	namer        *openapi.DefinitionNamer
	replacements map[string]string
}

func newDefinitionNames(scheme *runtime.Scheme, replacements map[string]string) definitionNames {
	return definitionNames{namer: openapi.NewDefinitionNamer(scheme), replacements: replacements}
}

// name returns the name of a definition, and the kinds that it describes.
func (d definitionNames) name(name string) (string, spec.Extensions) {
	short, extensions := d.namer.GetDefinitionName(modelName(name))
	for long, replacement := range d.replacements {
		short = strings.ReplaceAll(short, long, replacement)
	}
	return short, extensions
}
