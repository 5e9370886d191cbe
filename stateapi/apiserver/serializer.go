package apiserver

import "k8s.io/apimachinery/pkg/runtime"

// onlyText is a serializer without protobuf. The types of stores usually have no protobuf form, and
// a client that prefers protobuf, but accepts JSON, then gets JSON instead of an error.
type onlyText struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s onlyText) SupportedMediaTypes() (text []runtime.SerializerInfo) {
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType == runtime.ContentTypeJSON || info.MediaType == runtime.ContentTypeYAML {
			text = append(text, info)
		}
	}
	return text
}
