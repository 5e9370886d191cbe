package statuspage_test

import (
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/statuspage"
)

func ExampleNew() {
	serve := func(mgr ctrl.Manager, connections clustercache.ClusterCache) error {
		page := statuspage.New(connections, statuspage.Options{Name: "team-operator"})
		if err := mgr.Add(page); err != nil {
			return err
		}
		return mgr.AddMetricsServerExtraHandler("/status/", page)
	}
	_ = serve
}
