package scopedcache_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// ledger is a handler that checks what it is told against itself, and remembers what there is.
type ledger struct {
	refeeds bool // what is known may be added again, as it is when a right is won back

	mu      sync.Mutex
	there   map[types.UID]string // guarded by mu; resourceVersion
	adds    map[types.UID]int    // guarded by mu
	updates int                  // guarded by mu
	wrongs  []string             // guarded by mu
}

func newLedger() *ledger { return &ledger{there: map[types.UID]string{}, adds: map[types.UID]int{}} }

func (l *ledger) OnAdd(added any, _ bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	object := added.(client.Object)
	if _, known := l.there[object.GetUID()]; known && !l.refeeds {
		l.wrongs = append(l.wrongs, "a second add of "+object.GetName())
	}
	l.adds[object.GetUID()]++
	l.there[object.GetUID()] = object.GetResourceVersion()
}

func (l *ledger) OnUpdate(before, updated any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.updates++
	object, earlier := updated.(client.Object), before.(client.Object)
	if _, known := l.there[earlier.GetUID()]; !known {
		l.wrongs = append(l.wrongs, "an update of the unknown "+object.GetName())
	}
	if earlier.GetUID() != object.GetUID() { // client-go tells so of a recreation that it has not seen
		delete(l.there, earlier.GetUID())
	}
	l.there[object.GetUID()] = object.GetResourceVersion()
}

func (l *ledger) OnDelete(deleted any) {
	if unseen, ok := deleted.(toolscache.DeletedFinalStateUnknown); ok {
		deleted = unseen.Obj
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	object := deleted.(client.Object)
	if _, known := l.there[object.GetUID()]; !known {
		l.wrongs = append(l.wrongs, "a deletion of the unknown "+object.GetName())
	}
	delete(l.there, object.GetUID())
}

func (l *ledger) wrong() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.wrongs)
}

// is reports how what was told differs from what the API server has.
func (l *ledger) differs(ctx context.Context, namespace string) (string, error) {
	list := &corev1.ConfigMapList{}
	if err := admin.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.there) != len(list.Items) {
		return fmt.Sprintf("told of %d objects, there are %d", len(l.there), len(list.Items)), nil
	}
	for i := range list.Items {
		if version, ok := l.there[list.Items[i].UID]; !ok || version != list.Items[i].ResourceVersion {
			return fmt.Sprintf("%s is %q, not %q", list.Items[i].Name, list.Items[i].ResourceVersion, version), nil
		}
	}
	return "", nil
}

// Errors are not rights: in bursts of 500, 429, 410 and resets nothing is ever forbidden, reads go
// on from what there is, and in the end handlers were told of everything, once.
func TestBurstsOfErrors(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	create(t, configMap(ns, "first"))
	u.grant(t, ns, "configmaps", "list", "watch")
	f := newFaults(t, u)
	var mu sync.Mutex
	states := map[scopedcache.State]int{}
	c := u.startAt(t, f.config,
		scopedcache.Options{PerNamespace: true, AccessReviewInterval: 200 * time.Millisecond,
			Observe: func(_ scopedcache.State, now scopedcache.ScopeState) {
				mu.Lock()
				defer mu.Unlock()
				states[now.State]++
			}}, cache.Options{})
	held, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	told := newLedger()
	_, err = held.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.names(ctx, ns)).To(Equal([]string{"first"}))

	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	reads := make(chan error, 1)
	go func() {
		for reading.Err() == nil {
			names, err := c.names(ctx, ns)
			if err == nil && !slices.Contains(names, "first") {
				err = fmt.Errorf("read %v", names)
			}
			if err != nil {
				reads <- err
				return
			}
		}
		reads <- nil
	}()
	answered := [5]int{} // by kind of error
	// each ends a watch, after which client-go waits twice as long as before, up to a minute
	for burst := range answered {
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return answered[burst]
		}
		f.do(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.HasSuffix(req.URL.Path, "/configmaps") { // of the informer, and not of an access review
				mu.Lock()
				answered[burst]++
				mu.Unlock()
			}
			switch burst {
			case 0:
				fail(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			case 1:
				fail(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
			case 2:
				fail(w, http.StatusGone, metav1.StatusReasonExpired)
			case 3:
				fail(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
			default:
				panic(http.ErrAbortHandler) // a reset
			}
			return true
		})
		f.CloseClientConnections() // which ends the watch
		for i := range 5 {
			name := fmt.Sprintf("in-burst-%d-%d", burst, i)
			create(t, configMap(ns, name))
			if i > 0 {
				remove(t, configMap(ns, fmt.Sprintf("in-burst-%d-%d", burst, i-1)))
			}
		}
		first := configMap(ns, "first")
		first.Data = map[string]string{"burst": fmt.Sprint(burst)}
		g.Expect(admin.Update(ctx, first)).To(Succeed())
		g.Eventually(count).WithTimeout(patience).Should(BeNumerically(">", 1))
		g.Eventually(held.State).WithTimeout(patience).
			Should(And(HaveField("State", scopedcache.Failing), HaveField("LastError", HaveOccurred())))
		for range 100 { // the burst does not end before they are served
			inTime, cancel := context.WithTimeout(ctx, 5*time.Second)
			g.Expect(held.Get(inTime, client.ObjectKey{Namespace: ns, Name: "first"}, &corev1.ConfigMap{})).To(Succeed())
			cancel()
		}
		f.do(nil)
		g.Eventually(func() (string, error) { return told.differs(ctx, ns) }).WithTimeout(patience).Should(BeEmpty())
	}
	stopReading()
	g.Expect(<-reads).NotTo(HaveOccurred())
	g.Expect(told.wrong()).To(BeEmpty())
	mu.Lock()
	defer mu.Unlock()
	t.Logf("Requests of the informer that were answered with 500, 429, 410, 504, resets: %v; states: %v", answered,
		states)
	g.Expect(states).NotTo(HaveKey(scopedcache.Forbidden))
	g.Expect(states).NotTo(HaveKey(scopedcache.NotServed))
	g.Expect(held.List(ctx, &corev1.ConfigMapList{})).To(Succeed())
	held.Release()
}

// fail answers with a Status.
func fail(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).
		Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Code: code, Reason: reason, Message: strings.ToLower(string(reason))})
}

// total is how many additions and updates the handler was told of.
func (l *ledger) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, times := range l.adds {
		n += times
	}
	return n + l.updates
}

// versions are the resourceVersions of what there is.
func (l *ledger) versions() map[types.UID]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.there)
}
