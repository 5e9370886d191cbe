package figures

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/pkg/errors"
)

// The peers that a record has values of.
const (
	Latchkey   = "latchkey"
	ClusterAPI = "clusterapi"
	Plain      = "plain"
)

// Record is what was measured, by scenario and peer.
type Record map[string]map[string]Measurement

// Measurement is what one peer took in a scenario.
type Measurement struct {
	// From says where the values come from, such as the commit that was measured.
	From string `json:"from"`
	// Values are medians, by unit.
	Values map[string]float64 `json:"values"`
}

// Read reads a record.
func Read(file string) (Record, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	r := Record{}
	return r, errors.Wrapf(json.Unmarshal(text, &r), "reading %s", file)
}

// Write writes a record.
func (r Record) Write(file string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return errors.WithStack(err)
	}
	return errors.WithStack(os.WriteFile(file, append(text, '\n'), 0o644))
}

// Set records what a peer took in a scenario, in place of what was recorded before.
func (r Record) Set(scenario, peer string, m Measurement) {
	if r[scenario] == nil {
		r[scenario] = map[string]Measurement{}
	}
	r[scenario][peer] = m
}

// value returns the value of scenario.unit of a peer.
func (r Record) value(name, peer string) (float64, bool) {
	scenario, unit, _ := strings.Cut(name, ".")
	value, ok := r[scenario][peer].Values[unit]
	return value, ok
}

// Text returns the figure with a name, as pages show it: "13 KiB" for idle_heap.bytes.
func (r Record) Text(name string) (string, error) {
	figure, peer, ok := strings.Cut(name, "/")
	if !ok {
		peer = Latchkey
	}
	value, ok := r.value(figure, peer)
	if !ok {
		return "", errors.Errorf("there is no figure %q in the record", name)
	}
	_, unit, _ := strings.Cut(figure, ".")
	return show(value, unit), nil
}

// show returns a value as pages show it. The name of a unit says what it is a number of.
func show(value float64, unit string) string {
	switch {
	case strings.HasSuffix(unit, "bytes"):
		return number(value/1024) + " KiB"
	case strings.Contains(unit, "mib"):
		return number(value) + " MiB"
	case unit == "ns":
		return duration(value)
	case strings.HasSuffix(unit, "_us"):
		return duration(value * 1e3)
	case unit == "ms" || strings.HasSuffix(unit, "_ms"):
		return number(value) + " ms"
	case unit == "s" || unit == "sync_s" || unit == "recovery_s":
		return number(value) + " s"
	}
	return number(value)
}

// duration shows a number of nanoseconds.
func duration(ns float64) string {
	switch {
	case ns < 1e3:
		return number(ns) + " ns"
	case ns < 1e6:
		return number(ns/1e3) + " µs"
	}
	return number(ns/1e6) + " ms"
}

// number shows two digits of what is smaller than ten, and otherwise a whole number.
func number(value float64) string {
	switch {
	case value == 0:
		return "0"
	case value < 0.995:
		return fmt.Sprintf("%.2g", value)
	case value < 9.95:
		return fmt.Sprintf("%.1f", value)
	}
	digits := fmt.Sprintf("%.0f", value)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
