package credential

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/pkg/errors"
	"go.yaml.in/yaml/v3"
)

const (
	// maxIndicators is the maximum number of YAML indicators in a kubeconfig. Every YAML value
	// except the first needs an indicator. Their number, counted before parsing, therefore limits
	// the memory for parsing. A cluster, a context and a user have about 30 together.
	maxIndicators = 4096
	// minBytesPerIndicator limits the indicators in a short kubeconfig too, so that the cost of
	// parsing is proportional to the size. A kubeconfig with one cluster, its authorities and a
	// ServiceAccount token has about 80 bytes per indicator.
	minBytesPerIndicator = 12
	// maxYAMLDepth is the maximum nesting of values. A kubeconfig needs eight levels.
	maxYAMLDepth = 32
)

// indicators are the bytes with a special meaning in YAML. Base64 has none of them.
var indicators = []byte("-?:,[]{}#&*!|>'\"%@`")

// plainJSON converts a YAML document to JSON. A document with an anchor or alias is refused,
// because a few aliases expand a short text to gigabytes. An error quotes no content. Callers use
// only the JSON from then on, so that no second YAML parser can read the document differently.
func plainJSON(content []byte) ([]byte, error) {
	if n := countIndicators(content); n > maxIndicators || n > 256 && n > len(content)/minBytesPerIndicator {
		return nil,
			errors.New("the kubeconfig has too many values; keep only the current context, its cluster and its user")
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, errors.New("the content cannot be parsed as a kubeconfig") // the cause quotes the content
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

// writeJSON appends a node as JSON. Numbers become strings, because a kubeconfig has no numbers.
func writeJSON(out *bytes.Buffer, node *yaml.Node, depth int) error {
	switch {
	case node.Kind == yaml.AliasNode || node.Anchor != "":
		return errors.New("a YAML anchor or alias is refused; replace each alias by its value")
	case depth > maxYAMLDepth:
		return errors.New(fmt.Sprintf("values are nested deeper than %d levels", maxYAMLDepth))
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
				return errors.New("the content cannot be parsed as a kubeconfig: a key is not a string")
			}
			if node.Content[i].Anchor != "" {
				return writeJSON(out, node.Content[i], depth)
			}
			writeString(out, node.Content[i].Value)
			out.WriteByte(':')
			if writeBoolean(out, node.Content[i].Value, node.Content[i+1]) {
				continue
			}
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
		return errors.New("the content is empty")
	}
	return nil
}

// booleanFields are the fields of a kubeconfig that are booleans.
var booleanFields = map[string]bool{"insecure-skip-tls-verify": true, "disable-compression": true,
	"provideClusterInfo": true}

// writeBoolean appends the value of a field that is a boolean, if it is one of YAML 1.1's words for
// it, such as no and off, which kubectl takes. In other fields these words are texts.
func writeBoolean(out *bytes.Buffer, field string, value *yaml.Node) bool {
	var isTrue bool
	if !booleanFields[field] || value.Kind != yaml.ScalarNode || value.Style != 0 || value.Anchor != "" ||
		value.ShortTag() != "!!str" || value.Decode(&isTrue) != nil {
		return false
	}
	fmt.Fprintf(out, "%t", isTrue)
	return true
}

func writeString(out *bytes.Buffer, text string) {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // escaping makes six bytes of one
	_ = encoder.Encode(text)     // never fails for a string
	out.Truncate(out.Len() - 1)  // removes the newline
}
