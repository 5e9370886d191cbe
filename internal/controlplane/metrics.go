package controlplane

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/pkg/errors"
)

// Metric returns the sum of the API server's own series of that name that have all given labels,
// each as `label="value"`. httpClient must authenticate as the administrator.
func (c *ControlPlane) Metric(httpClient *http.Client, name string, labels ...string) (sum int, err error) {
	resp, err := httpClient.Get(strings.TrimSuffix(c.env.Config.Host, "/") + "/metrics")
	if err != nil {
		return 0, errors.WithStack(err)
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return 0, errors.Errorf("reading metrics: %s, %v", resp.Status, err)
	}
series:
	for line := range strings.Lines(string(metrics)) {
		if !strings.HasPrefix(line, name+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(line, label) {
				continue series
			}
		}
		count, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, " "):]))
		if err != nil {
			return 0, errors.Wrap(err, "reading metrics")
		}
		sum += count
	}
	return sum, nil
}
