package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pkg/errors"
	"go.yaml.in/yaml/v3"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: chartvalues CHART")
		os.Exit(2)
	}
	if err := update(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chartvalues:", err)
		os.Exit(1)
	}
}

// The files of a chart that share the descriptions.
const (
	valuesFile = "values.yaml"
	schemaFile = "values.schema.json"
	readmeFile = "README.md"
)

// update writes the schema and the README of a chart.
func update(chart string) error {
	values, schema, readme, err := read(chart)
	if err != nil {
		return err
	}
	if schema, readme, err = generate(values, schema, readme); err != nil {
		return err
	}
	for name, content := range map[string]string{schemaFile: schema, readmeFile: readme} {
		if err := os.WriteFile(filepath.Join(chart, name), []byte(content), 0o644); err != nil { //nolint:gosec // public
			return errors.WithStack(err)
		}
	}
	return nil
}

func read(chart string) (values, schema, readme string, err error) {
	for name, into := range map[string]*string{valuesFile: &values, schemaFile: &schema, readmeFile: &readme} {
		content, err := os.ReadFile(filepath.Join(chart, name))
		if err != nil {
			return "", "", "", errors.WithStack(err)
		}
		*into = string(content)
	}
	return values, schema, readme, nil
}

// generate returns the schema and the README with the descriptions of the values.
func generate(values, schema, readme string) (newSchema, newReadme string, err error) {
	described, err := descriptionsOf(values)
	if err != nil {
		return "", "", errors.WithMessage(err, valuesFile)
	}
	var document yaml.Node // JSON is YAML, and a node keeps the order of the keys
	if err := yaml.Unmarshal([]byte(schema), &document); err != nil {
		return "", "", errors.Wrap(err, schemaFile)
	}
	properties, err := propertiesOf(document.Content[0])
	if err != nil {
		return "", "", errors.WithMessage(err, schemaFile)
	}
	if err := match(described, properties); err != nil {
		return "", "", err
	}
	var defaults map[string]any
	if err := yaml.Unmarshal([]byte(values), &defaults); err != nil {
		return "", "", errors.Wrap(err, valuesFile)
	}
	table, err := tableOf(described, properties, defaults)
	if err != nil {
		return "", "", err
	}
	before, _, found := strings.Cut(readme, "\n## Values\n")
	if !found {
		return "", "", errors.Errorf("%s has no heading \"## Values\"", readmeFile)
	}
	return jsonText(document.Content[0], 0, 0) + "\n", before + "\n## Values\n\n" + table, nil
}

// match writes the descriptions into the properties of the schema. Each value must have both.
func match(described []description, properties map[string]property) error {
	texts := map[string]bool{}
	for _, d := range described {
		p, known := properties[d.path]
		if !known {
			return errors.Errorf("%s describes %s, which %s does not have", valuesFile, d.path, schemaFile)
		}
		texts[d.path] = true
		p.describe(d.text)
	}
	for path := range properties {
		if !texts[path] {
			return errors.Errorf("%s has no description of %s: \"# -- …\" above it, or \"# %s -- …\"", valuesFile, path, path)
		}
	}
	return nil
}

// tableOf returns the table of the README, in the order of values.yaml.
func tableOf(described []description, properties map[string]property, defaults map[string]any) (string, error) {
	var table strings.Builder
	table.WriteString("[values.yaml](values.yaml) is the source of this table (`make deploy`), and " +
		"[values.schema.json](values.schema.json)\nrefuses what cannot work.\n\n" +
		"| value | type | default | what it is |\n| --- | --- | --- | --- |\n")
	for _, d := range described {
		p := properties[d.path]
		value, err := p.defaultText(d.path, defaults)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", d.path, p.typeText(), value, cell(d.text)+p.alternatives(d.text))
	}
	return table.String(), nil
}

// cell returns a text as the cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}
