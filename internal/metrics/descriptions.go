package metrics

import (
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Description is what a metric is.
type Description struct {
	Name, Help string
	Labels     []string
}

// described parses a description, because Prometheus has no other way to read one.
var described = regexp.MustCompile(
	`^Desc\{fqName: "([^"]+)", help: "([^"]*)", unit: "[a-z]*", constLabels: \{\}, variableLabels: \{([^}]*)\}`)

// Descriptions returns the descriptions of all metrics.
func Descriptions() (list []Description) {
	for _, c := range everything() {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for desc := range descs {
			match := described.FindStringSubmatch(desc.String())
			list = append(list, Description{Name: match[1], Help: match[2], Labels: strings.Split(match[3], ",")})
		}
	}
	return list
}
