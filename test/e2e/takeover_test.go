package e2e

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// valve holds back what the watches of tenants receive while it is closed.
type valve struct {
	mu     sync.Mutex
	opened chan struct{} // guarded by mu; nil while it is open
}

func (v *valve) set(open bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.opened != nil {
		close(v.opened)
		v.opened = nil
	}
	if !open {
		v.opened = make(chan struct{})
	}
}

// install makes the watches of ConfigMaps through a proxy pass the valve.
func (v *valve) install(f *faults) {
	f.pass.Store(new(func(w http.ResponseWriter, req *http.Request, pass http.Handler) {
		if strings.HasSuffix(req.URL.Path, "/configmaps") && req.URL.Query().Get("watch") != "" {
			w = valveWriter{w, req.Context(), v}
		}
		pass.ServeHTTP(w, req)
	}))
}

type valveWriter struct {
	http.ResponseWriter
	ctx   context.Context
	valve *valve
}

func (w valveWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w valveWriter) Write(data []byte) (int, error) {
	w.valve.mu.Lock()
	opened := w.valve.opened
	w.valve.mu.Unlock()
	if opened != nil {
		select {
		case <-opened:
		case <-w.ctx.Done():
			return 0, w.ctx.Err()
		}
	}
	return w.ResponseWriter.Write(data)
}

// What the replica before wrote for an extension is in the first cached read of the replica that
// takes it over, although a sibling's informer, which it shares, does not have that yet.
func TestTakeOverIsFresh(t *testing.T) {
	g := NewWithT(t)
	ns, begin := namespace(t), time.Now()
	names := []string{"stays-" + ns, "moves-" + ns}
	siblings(t, ns, names[0], names...)
	username := "system:serviceaccount:" + ns + ":" + names[0]
	create(t, configMap(ns, "deleted"))
	create(t, configMap(ns, "kept"))
	proxy, v := newFaults(t), &valve{}
	v.install(proxy)
	config, _ := proxy.operatorConfig(t)
	lease, f := testutil.NewLease()
	defer lease.Release()
	lease.Renew(3600)
	engine := newHandEngine(f)
	o := newOperatorAt(t, config, clustercache.Options{
		Ownership:     engine,
		AllowIdentity: clustercache.GuardedByAdmission,
	})
	o.also = append(o.also, proxy.quiet)
	o.start(t)
	defer v.set(true)
	replica := <-engine.running
	within := patience // shorter than the time until a bookmark
	read := func(name, object string) error {
		reader, err := o.GetReader(t.Context(), key(name))
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return reader.Get(ctx, client.ObjectKey{Namespace: ns, Name: object}, &corev1.ConfigMap{})
	}
	g.Expect(replica.Take(t.Context(), engine.set(names[0], true))).To(Succeed())
	g.Eventually(func() error { return read(names[0], "deleted") }).WithTimeout(patience).Should(Succeed())

	v.set(false)
	g.Expect(admin.Delete(t.Context(), configMap(ns, "deleted"))).To(Succeed())
	g.Expect(admin.Create(t.Context(), configMap(ns, "written"))).To(Succeed())
	g.Expect(replica.Take(t.Context(), engine.set(names[1], true))).To(Succeed())
	g.Expect(read(names[0], "deleted")).To(Succeed(), "the informer is behind")
	within = time.Second
	for _, object := range []string{"deleted", "written", "kept"} {
		err := read(names[1], object)
		g.Expect(apierrors.IsTimeout(err)).To(BeTrue(), "%s: %v", object, err)
		g.Expect(err).To(MatchError(ContainSubstring("the replica before this one wrote")))
	}
	within = patience
	v.set(true)
	g.Eventually(func() error { return read(names[1], "written") }).WithTimeout(patience).Should(Succeed())
	g.Expect(apierrors.IsNotFound(read(names[1], "deleted"))).To(BeTrue())
	g.Expect(read(names[1], "kept")).To(Succeed())
	g.Expect(replica.GiveUp(t.Context(), engine.set(names[1], false))).To(Succeed())
	g.Expect(replica.Take(t.Context(), engine.set(names[1], true))).To(Succeed())
	g.Expect(read(names[1], "written")).To(Succeed(), "nothing has changed since, so it waits for no event")

	requests := requestsOfInformers(t, username, begin)
	g.Expect(countOf(requests, "stream")).To(Equal(1), "%v", requests)
	g.Expect(countOf(requests, "list")).To(Equal(2), "one for each take-over: %v", requests)
	g.Expect(watchesOf(t, "configmaps", ns)).To(Equal(1))
}
