// Package config has the YAML of the example: definitions of its kinds, permissions of the
// provider, its config, and a sample order.
package config

import "embed"

// Files has the YAML. The definitions are in crds.
//
//go:embed *.yaml crds/*.yaml
var Files embed.FS
