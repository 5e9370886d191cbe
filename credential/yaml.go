package credential

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/pkg/errors"
	"go.yaml.in/yaml/v3"
)

const (
	// maxIndicators is how many YAML indicators a kubeconfig may have. Every YAML value but the
	// first needs one, so they bound the memory that parsing takes before anything is parsed. A
	// cluster, a context and a user have about 30 together.
	maxIndicators = 4096
	// minBytesPerIndicator bounds them in a short kubeconfig too, so that parsing it costs in
	// proportion to its size. A cluster with its authorities and a token of a ServiceAccount has
	// some 80 bytes for each.
	minBytesPerIndicator = 12
	// maxYAMLDepth is how deep values may be nested. A kubeconfig needs eight levels.
	maxYAMLDepth = 32
)

// indicators are the bytes with a meaning in YAML. Base64 has none of them.
var indicators = []byte("-?:,[]{}#&*!|>'\"%@`")

// plainJSON returns a YAML document as JSON. A document with an anchor or alias is refused: a few
// of those make gigabytes of a short text. The JSON is what is used from there on, so that no
// second YAML parser can see another document. An error quotes nothing of the content.
func plainJSON(content []byte) ([]byte, error) {
	if n := countIndicators(content); n > maxIndicators || n > 256 && n > len(content)/minBytesPerIndicator {
		return nil, errors.New("it has too many values; keep the current context, its cluster and its user only")
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, errors.New("it cannot be parsed as a kubeconfig") // the cause quotes what it read
	}
	var out bytes.Buffer
	if err := writeJSON(&out, &document, 0); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func countIndicators(content []byte) (n int) {
	var isIndicator [256]bool
	for _, b := range indicators {
		isIndicator[b] = true
	}
	for _, b := range content {
		if isIndicator[b] {
			n++
		}
	}
	return n
}

// writeJSON appends a node as JSON. Numbers become strings, as a kubeconfig has none.
func writeJSON(out *bytes.Buffer, node *yaml.Node, depth int) error {
	switch {
	case node.Kind == yaml.AliasNode || node.Anchor != "":
		return errors.New("it has a YAML anchor or alias, which is refused; write the value out where it is used")
	case depth > maxYAMLDepth:
		return errors.New(fmt.Sprintf("its values are nested deeper than %d levels", maxYAMLDepth))
	}
	switch node.Kind {
	case yaml.DocumentNode:
		return writeJSON(out, node.Content[0], depth)
	case yaml.MappingNode:
		out.WriteByte('{')
		for i := 0; i+1 < len(node.Content); i += 2 {
			if i > 0 {
				out.WriteByte(',')
			}
			if node.Content[i].Kind != yaml.ScalarNode {
				return errors.New("it cannot be parsed as a kubeconfig: a key is no text")
			}
			if node.Content[i].Anchor != "" {
				return writeJSON(out, node.Content[i], depth)
			}
			writeString(out, node.Content[i].Value)
			out.WriteByte(':')
			if err := writeJSON(out, node.Content[i+1], depth+1); err != nil {
				return err
			}
		}
		out.WriteByte('}')
	case yaml.SequenceNode:
		out.WriteByte('[')
		for i, item := range node.Content {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := writeJSON(out, item, depth+1); err != nil {
				return err
			}
		}
		out.WriteByte(']')
	case yaml.ScalarNode:
		var isTrue bool
		switch tag := node.ShortTag(); {
		case tag == "!!null":
			out.WriteString("null")
		case tag == "!!bool" && node.Decode(&isTrue) == nil:
			fmt.Fprintf(out, "%t", isTrue)
		default:
			writeString(out, node.Value)
		}
	default:
		return errors.New("it is empty")
	}
	return nil
}

func writeString(out *bytes.Buffer, text string) {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // six bytes for one
	_ = encoder.Encode(text)     // fails for no string
	out.Truncate(out.Len() - 1)  // the line's end
}
