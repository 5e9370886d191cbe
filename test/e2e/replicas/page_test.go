package replicas

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/statuspage"
)

// servePage serves the status page of a replica that is part of the view of all.
func servePage(mgr manager.Manager, cc clustercache.ClusterCache, api *stateapi.StateAPI, address string) error {
	replicas, _ := api.Replicas()
	page := statuspage.New(cc, statuspage.Options{Replicas: replicas})
	if err := mgr.Add(page); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/status/", statuspage.Local(page))
	return mgr.Add(&manager.Server{
		Name:            "status page",
		Listener:        listener,
		ShutdownTimeout: new(time.Second),
		Server:          &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute},
	})
}

// pageRow is what the status page shows of an extension.
type pageRow struct {
	Extension, State, Reason, Replica string
	Since                             time.Time
}

// pageView is what the status page of a replica shows.
type pageView struct {
	Ready    bool
	Replicas struct {
		Names  []string
		Silent []struct{ Name string }
	}
	Problems []struct {
		Reason, Advice string
		Extensions     int
	}
	Page struct{ Rows []pageRow }
}

// read reads JSON below the page of a replica.
func (v *viewed) read(g Gomega, r *replica, path string, into any) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(v.pages[r] + path)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = resp.Body.Close() }()
	g.Expect(resp.StatusCode).To(Equal(http.StatusOK))
	g.Expect(json.NewDecoder(resp.Body).Decode(into)).To(Succeed())
}

// page returns what the status page of a replica shows.
func (v *viewed) page(g Gomega, r *replica) (view pageView) {
	v.read(g, r, "view?size=500", &view)
	return view
}

// Each replica's status page has the extensions of all. Those of a replica that is killed are
// Unknown, with the time when it was heard last, and none of them is green before another replica
// has it.
func TestStatusPageOfReplicas(t *testing.T) {
	g := NewWithT(t)
	v := newViewed(t, "pages", 20)
	v.options.Lease = 12 * time.Second // longer than a replica counts as heard
	a, b := v.start(), v.start()
	agree := func(members int, running ...*replica) {
		t.Helper()
		last, same := map[string]*replica{}, 0
		g.Eventually(func(g Gomega) {
			g.Expect(v.serving()).To(HaveLen(members))
			owners := v.owners()
			g.Expect(owners).To(HaveLen(len(v.names)))
			if same++; !maps.Equal(owners, last) {
				last, same = owners, 0
			}
			g.Expect(same).To(BeNumerically(">", 10), "nothing moves any more")
			for _, r := range running {
				view := v.page(g, r)
				g.Expect(view.Replicas.Names).To(HaveLen(members))
				g.Expect(view.Replicas.Silent).To(BeEmpty())
				g.Expect(view.Problems).To(BeEmpty())
				g.Expect(view.Page.Rows).To(HaveLen(len(v.names)))
				for _, row := range view.Page.Rows {
					g.Expect([]string{row.State, row.Replica}).To(Equal([]string{v1alpha1.StateConnected, owners[row.Extension].name}))
				}
			}
		}).WithTimeout(2 * patience).WithPolling(200 * time.Millisecond).Should(Succeed())
	}
	agree(2, a, b)
	var ofB []string
	for name, owner := range v.owners() {
		if owner == b {
			ofB = append(ofB, name)
		}
	}

	// The details of one of B's extensions are B's.
	var details struct {
		Connections []struct {
			State, Replica, Username string
			LastProbe                time.Time
		}
	}
	v.read(g, a, "connections?format=json&extension="+url.QueryEscape(ofB[0]), &details)
	g.Expect(details.Connections).To(HaveLen(1))
	one := details.Connections[0]
	g.Expect([]string{one.State, one.Replica}).To(Equal([]string{v1alpha1.StateConnected, b.name}))
	g.Expect(one.Username).To(HaveSuffix(":" + ofB[0]))
	g.Expect(one.LastProbe).NotTo(BeZero(), "only B knows it")

	killed := time.Now()
	v.kill(b)
	isUnknown := map[string]bool{}
	look := func(g Gomega) pageView {
		at := time.Now()
		view := v.page(g, a)
		for _, row := range view.Page.Rows {
			switch {
			case row.Replica != b.name:
			case row.State == v1alpha1.StateUnknown:
				isUnknown[row.Extension] = true
				g.Expect(row.Reason).To(Equal(v1alpha1.ReasonReplicaSilent))
				g.Expect(row.Since).To(BeTemporally("<=", killed.Add(time.Second)), "as of then")
			case isUnknown[row.Extension] || at.Sub(killed) > silentFor:
				StopTrying("a row is green that no replica vouches for").Attach("row", row).Now()
			}
		}
		return view
	}
	g.Eventually(func(g Gomega) {
		view := look(g)
		g.Expect(isUnknown).To(HaveLen(len(ofB)))
		g.Expect(view.Replicas.Silent).To(HaveLen(1))
		g.Expect(view.Replicas.Silent[0].Name).To(Equal(b.name))
		g.Expect(view.Page.Rows[0].State).To(Equal(v1alpha1.StateUnknown), "problems first")
		g.Expect(view.Problems).To(HaveLen(1))
		g.Expect(view.Problems[0].Reason).To(Equal(v1alpha1.ReasonReplicaSilent))
		g.Expect(view.Problems[0].Extensions).To(Equal(len(ofB)))
		g.Expect(view.Problems[0].Advice).NotTo(BeEmpty())
	}).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(Succeed())
	g.Eventually(func(g Gomega) {
		for _, row := range look(g).Page.Rows {
			g.Expect([]string{row.State, row.Replica}).To(Equal([]string{v1alpha1.StateConnected, a.name}))
		}
	}).WithTimeout(2 * patience).WithPolling(100 * time.Millisecond).Should(Succeed())
	agree(1, a)
}

// A replica that joins, and cannot reach another one, does not say that nothing has what that one
// has.
func TestViewWithoutAReplica(t *testing.T) {
	v := newViewed(t, "unheard", 20)
	a := v.start()
	v.start()
	v.agrees()
	v.paths[a].set(true, true)
	c := v.start()
	expect := func(of func(owner *replica) []string, silent ...string) {
		t.Helper()
		NewWithT(t).Eventually(func(g Gomega) {
			g.Expect(v.serving()).To(HaveLen(3))
			owners := v.owners()
			g.Expect(owners).To(HaveLen(len(v.names)))
			g.Expect(slices.Collect(maps.Values(owners))).To(ContainElements(a, c))
			view := v.page(g, c)
			g.Expect(view.Replicas.Names).To(HaveLen(3))
			var names []string
			for _, one := range view.Replicas.Silent {
				names = append(names, one.Name)
			}
			g.Expect(names).To(Equal(silent))
			g.Expect(view.Page.Rows).To(HaveLen(len(v.names)))
			for _, row := range view.Page.Rows {
				g.Expect([]string{row.State, row.Reason, row.Replica}).To(Equal(of(owners[row.Extension])), row.Extension)
			}
		}).WithTimeout(2 * patience).WithPolling(200 * time.Millisecond).Should(Succeed())
	}
	connected := func(owner *replica) []string { return []string{v1alpha1.StateConnected, "", owner.name} }
	expect(func(owner *replica) []string {
		if owner == a {
			return []string{v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent, ""}
		}
		return connected(owner)
	}, a.name)
	v.paths[a].set(false, true)
	expect(connected)
}
