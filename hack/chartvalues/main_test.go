package main

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// The chart's schema and README have the descriptions of its values.yaml, and each value has one.
func TestChartIsCurrent(t *testing.T) {
	g := NewWithT(t)
	values, schema, readme, err := read("../../deploy/helm/latchkey")
	g.Expect(err).NotTo(HaveOccurred())
	wantSchema, wantReadme, err := generate(values, schema, readme)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(schema).To(Equal(wantSchema), "make deploy")
	g.Expect(readme).To(Equal(wantReadme), "make deploy")
}

const (
	values = `# Values of x.

# -- A port | a
# number.
#
# port: 80
port: 8080 # which is free
# -- A server.
server:
  # -- Labels.
  labels: {a: b}
  # -- Its readers.
  # server.readers[].name -- Name of a reader.
  readers: []
# -- What to do.
mode: go
# -- Either "on" or "off".
light: "on"
`
	schema = `{"properties": {"port": {"$ref": "#/$defs/port"},
		"server": {"type": "object", "properties": {
			"labels": {"description": "old", "type": "object"},
			"readers": {"type": "array", "items": {"properties": {"name": {"type": ["string", "integer"]}}}}}},
		"mode": {"enum": ["go", "<stop>"]}, "light": {"enum": ["on", "off"]}},
	"$defs": {"port": {"type": "integer", "pattern": "^\\d+$"}, "of": {"properties": {"x": {}}}}}`
	readme = "# Chart\n\nText.\n\n## Values\n\nold\n"
)

func TestGenerate(t *testing.T) {
	g := NewWithT(t)
	newSchema, newReadme, err := generate(values, schema, readme)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(newSchema).To(Equal(`{
  "properties": {
    "port": {"description": "A port | a number.", "$ref": "#/$defs/port"},
    "server": {
      "description": "A server.",
      "type": "object",
      "properties": {
        "labels": {"description": "Labels.", "type": "object"},
        "readers": {
          "description": "Its readers.",
          "type": "array",
          "items": {"properties": {"name": {"description": "Name of a reader.", "type": ["string", "integer"]}}}
        }
      }
    },
    "mode": {"description": "What to do.", "enum": ["go", "<stop>"]},
    "light": {"description": "Either \"on\" or \"off\".", "enum": ["on", "off"]}
  },
  "$defs": {"port": {"type": "integer", "pattern": "^\\d+$"}, "of": {"properties": {"x": {}}}}
}
`))
	g.Expect(json.Valid([]byte(newSchema))).To(BeTrue())
	before, table, _ := strings.Cut(newReadme, "| --- | --- | --- | --- |\n")
	g.Expect(before).To(HavePrefix("# Chart\n\nText.\n\n## Values\n\n"))
	g.Expect(table).To(Equal("| `port` | integer | `8080` | A port \\| a number. |\n" +
		"| `server` | object |  | A server. |\n" +
		"| `server.labels` | object | `{\"a\":\"b\"}` | Labels. |\n" +
		"| `server.readers` | array | `[]` | Its readers. |\n" +
		"| `server.readers[].name` | string or integer |  | Name of a reader. |\n" +
		"| `mode` | string | `\"go\"` | What to do. One of `go`, `<stop>`. |\n" +
		"| `light` | string | `\"on\"` | Either \"on\" or \"off\". |\n"))
	again, againReadme, err := generate(values, newSchema, newReadme)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(Equal(newSchema))
	g.Expect(againReadme).To(Equal(newReadme))
}

func TestGenerateRefuses(t *testing.T) {
	for name, test := range map[string]struct{ file, old, new, want string }{
		"a value without a description":   {"values", "# -- What to do.\n", "", "no description of mode"},
		"a comment without its marker":    {"values", "# -- Labels.", "# Labels.", "no description of server.labels"},
		"an item without a description":   {"values", "[].name -- Name", "[].name - Name", "of server.readers[].name"},
		"a value that the schema lacks":   {"schema", `"mode": {`, `"moda": {`, "describes mode, which values.schema.json does not have"},
		"a description of nothing":        {"values", "light: \"on\"\n", "", "describes no value"},
		"a description above another one": {"values", "server:\n  # -- L", "#\n  # -- L", `"A server." describes no value`},
		"a key that is indented too far":  {"values", "  labels", "      labels", "has no parent"},
		"a reference to an object":        {"schema", "$defs/port", "$defs/of", "port: #/$defs/of must be among $defs"},
		"a reference to nothing":          {"schema", "$defs/port", "$defs/none", "port: #/$defs/none must be"},
		"a README without the heading":    {"readme", "## Values", "## Value", "no heading"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			files := map[string]string{"values": values, "schema": schema, "readme": readme}
			g.Expect(strings.Count(files[test.file], test.old)).To(Equal(1))
			files[test.file] = strings.Replace(files[test.file], test.old, test.new, 1)
			_, _, err := generate(files["values"], files["schema"], files["readme"])
			g.Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}
