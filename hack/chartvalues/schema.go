package main

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/pkg/errors"
	"go.yaml.in/yaml/v3"
)

// property is a value of the schema.
type property struct {
	node     *yaml.Node // as the schema has it
	resolved *yaml.Node // that, or what its $ref names
}

// propertiesOf returns the properties of a schema by their paths, and those of lists' items.
func propertiesOf(schema *yaml.Node) (map[string]property, error) {
	found := map[string]property{}
	return found, collect(found, schema, member(schema, "$defs"), "")
}

// collect adds the properties of a part of the schema, which is at path.
func collect(found map[string]property, part, defs *yaml.Node, path string) error {
	properties := member(part, "properties")
	if properties == nil {
		return nil
	}
	for i := 0; i < len(properties.Content); i += 2 {
		name, p := properties.Content[i].Value, property{node: properties.Content[i+1]}
		if path != "" {
			name = path + "." + name
		}
		p.resolved = p.node
		if ref := member(p.node, "$ref"); ref != nil {
			p.resolved = member(defs, strings.TrimPrefix(ref.Value, "#/$defs/"))
			if p.resolved == nil || member(p.resolved, "properties") != nil {
				return errors.Errorf("%s: %s must be among $defs, and without properties, which would have one description "+
					"for several values", name, ref.Value)
			}
		}
		found[name] = p
		if err := collect(found, p.node, defs, name); err != nil {
			return err
		}
		if err := collect(found, member(p.node, "items"), defs, name+"[]"); err != nil {
			return err
		}
	}
	return nil
}

// member returns the value of a key, nil if there is none.
func member(object *yaml.Node, key string) *yaml.Node {
	if object == nil || object.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(object.Content); i += 2 {
		if object.Content[i].Value == key {
			return object.Content[i+1]
		}
	}
	return nil
}

// describe sets the description, which is the first key.
func (p property) describe(text string) {
	value := &yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: text}
	if old := member(p.node, "description"); old != nil {
		*old = *value
		return
	}
	key := &yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: "description"}
	p.node.Content = append([]*yaml.Node{key, value}, p.node.Content...)
}

// typeText returns the type, such as "string or integer".
func (p property) typeText() string {
	switch declared := member(p.resolved, "type"); {
	case declared == nil && member(p.resolved, "const") != nil:
		return "boolean" // the only constants
	case declared == nil:
		return "string" // an enumeration
	case declared.Kind == yaml.SequenceNode:
		var types []string
		for _, one := range declared.Content {
			types = append(types, one.Value)
		}
		return strings.Join(types, " or ")
	default:
		return declared.Value
	}
}

// alternatives returns a sentence with the values of an enumeration, "" if the property is none, or
// a text has each of them in quotes.
func (p property) alternatives(text string) string {
	enum := member(p.resolved, "enum")
	if enum == nil {
		return ""
	}
	var values []string
	known := true
	for _, one := range enum.Content {
		values = append(values, "`"+one.Value+"`")
		known = known && strings.Contains(text, `"`+one.Value+`"`)
	}
	if known {
		return ""
	}
	return " One of " + strings.Join(values, ", ") + "."
}

// defaultText returns the default as JSON, "" for what has none or consists of values with
// descriptions of their own.
func (p property) defaultText(path string, defaults map[string]any) (string, error) {
	if member(p.node, "properties") != nil {
		return "", nil
	}
	var value any = defaults
	for _, name := range strings.Split(path, ".") {
		parent, _ := value.(map[string]any)
		var found bool
		if value, found = parent[name]; !found {
			return "", nil
		}
	}
	text, err := json.Marshal(value)
	return "`" + string(text) + "`", errors.WithStack(err)
}

// width is how many columns a line of JSON has at most, if it can be broken.
const width = 120

// jsonText returns a node as JSON: on one line if it is not too long. It begins at a column, on a
// line with an indentation.
func jsonText(node *yaml.Node, column, indentation int) string {
	opening, closing := "[", "]"
	if node.Kind == yaml.MappingNode {
		opening, closing = "{", "}"
	}
	if node.Kind == yaml.ScalarNode || len(node.Content) == 0 {
		return scalarText(node, opening+closing)
	}
	short := opening + strings.Join(elements(node, 0, 0, true), ", ") + closing
	if column+len([]rune(short)) < width {
		return short
	}
	inner := "\n" + strings.Repeat(" ", indentation+2)
	return opening + inner + strings.Join(elements(node, indentation+2, indentation+2, false), ","+inner) +
		inner[:len(inner)-2] + closing
}

// elements returns the elements of an object or array.
func elements(node *yaml.Node, column, indentation int, short bool) (texts []string) {
	if short {
		column = -1 << 20 // nothing is too long
	}
	step := 1
	if node.Kind == yaml.MappingNode {
		step = 2
	}
	for i := 0; i < len(node.Content); i += step {
		prefix := ""
		if step == 2 {
			prefix = scalarText(node.Content[i], "") + ": "
		}
		texts = append(texts, prefix+jsonText(node.Content[i+step-1], column+len(prefix), indentation))
	}
	return texts
}

// scalarText returns a scalar as JSON, and empty for what is none.
func scalarText(node *yaml.Node, empty string) string {
	if node.Kind != yaml.ScalarNode {
		return empty
	}
	if node.Style&yaml.DoubleQuotedStyle == 0 {
		return node.Value // a number or a boolean
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(node.Value) // a string can be encoded, and a buffer takes everything
	return strings.TrimSuffix(text.String(), "\n")
}
