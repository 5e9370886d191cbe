package listwatch

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
)

// BenchmarkDecode decodes bursts of 100 events, beside client-go's decoder.
func BenchmarkDecode(b *testing.B) {
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		for _, size := range []int{100, 5_000, 100_000} {
			answer := bytes.Repeat(encode(b, mediaType, watch.Added, configMap("a", size)), 100)
			info, _ := runtime.SerializerInfoForMediaType(typed.SupportedMediaTypes(), mediaType)
			for name, newDecoder := range map[string]func(io.ReadCloser) watch.Decoder{
				"latchkey": func(body io.ReadCloser) watch.Decoder {
					d, err := newDecoder(body, mediaType, typed)
					if err != nil {
						b.Fatal(err)
					}
					return d
				},
				"client-go": func(body io.ReadCloser) watch.Decoder {
					return restwatch.NewDecoder(streaming.NewDecoder(info.StreamSerializer.NewFrameReader(body),
						info.StreamSerializer.Serializer), typed.DecoderToVersion(info.Serializer, nil))
				},
			} {
				b.Run(fmt.Sprintf("%s/%d/%s", mediaType, size, name), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						d := newDecoder(io.NopCloser(bytes.NewReader(answer)))
						for {
							if _, _, err := d.Decode(); err != nil {
								break
							}
						}
					}
				})
			}
		}
	}
}
