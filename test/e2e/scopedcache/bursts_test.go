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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/versions"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// ledger is an event handler that records which objects exist according to its events. A ledger
// also records events that contradict the earlier ones.
type ledger struct {
	// allowReadds accepts an add event for a known object. Such events occur when a permission is
	// granted again.
	allowReadds bool
	// changesAsAdds accepts an add event for a known object that has changed. Such events occur when
	// one informer takes over from another.
	changesAsAdds bool

	mu           sync.Mutex
	versionByUID map[types.UID]string // guarded by mu; resourceVersion
	addsByUID    map[types.UID]int    // guarded by mu
	namespaces   map[types.UID]string // guarded by mu
	latestByUID  map[types.UID]string // guarded by mu; also of objects that were deleted since
	updateCount  int                  // guarded by mu
	violationLog []string             // guarded by mu
}

func newLedger() *ledger {
	return &ledger{
		versionByUID: map[types.UID]string{},
		addsByUID:    map[types.UID]int{},
		namespaces:   map[types.UID]string{},
		latestByUID:  map[types.UID]string{},
	}
}

func (l *ledger) OnAdd(added any, _ bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	object := added.(client.Object)
	version, known := l.versionByUID[object.GetUID()]
	again := l.changesAsAdds && versions.Later(version, object.GetResourceVersion()) != version
	l.noteVersion(object)
	if known && !l.allowReadds && !again {
		l.violationLog = append(l.violationLog, "a second add event for "+object.GetName())
	}
	l.addsByUID[object.GetUID()]++
	l.namespaces[object.GetUID()] = object.GetNamespace()
	l.versionByUID[object.GetUID()] = object.GetResourceVersion()
}

// noteVersion records an event that goes back in time. The caller holds mu.
func (l *ledger) noteVersion(object client.Object) {
	if !l.changesAsAdds {
		return
	}
	before, version := l.latestByUID[object.GetUID()], object.GetResourceVersion()
	if before != "" && versions.Later(before, version) == before {
		l.violationLog = append(l.violationLog, "version "+version+" of "+object.GetName()+" after "+before)
	}
	l.latestByUID[object.GetUID()] = version
}

func (l *ledger) OnUpdate(before, updated any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.updateCount++
	object, earlier := updated.(client.Object), before.(client.Object)
	l.noteVersion(object)
	if _, known := l.versionByUID[earlier.GetUID()]; !known {
		l.violationLog = append(l.violationLog, "an update event for the unknown object "+object.GetName())
	}
	// client-go reports a recreation that the watch missed as an update.
	if earlier.GetUID() != object.GetUID() {
		delete(l.versionByUID, earlier.GetUID())
	}
	l.versionByUID[object.GetUID()] = object.GetResourceVersion()
	l.namespaces[object.GetUID()] = object.GetNamespace()
}

func (l *ledger) OnDelete(deleted any) {
	if unseen, ok := deleted.(toolscache.DeletedFinalStateUnknown); ok {
		deleted = unseen.Obj
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	object := deleted.(client.Object)
	if l.changesAsAdds {
		l.latestByUID[object.GetUID()] = versions.Later(l.latestByUID[object.GetUID()], object.GetResourceVersion())
	}
	if _, known := l.versionByUID[object.GetUID()]; !known {
		l.violationLog = append(l.violationLog, "a delete event for the unknown object "+object.GetName())
	}
	delete(l.versionByUID, object.GetUID())
}

func (l *ledger) violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.violationLog)
}

// diff describes the first difference between the recorded objects and those of the API server.
// diff returns "" if there is none.
func (l *ledger) diff(ctx context.Context, namespace string) (string, error) {
	list := &corev1.ConfigMapList{}
	if err := admin.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.versionByUID) != len(list.Items) {
		return fmt.Sprintf("the handler knows %d objects, the API server has %d", len(l.versionByUID), len(list.Items)), nil
	}
	for i := range list.Items {
		if version, ok := l.versionByUID[list.Items[i].UID]; !ok || version != list.Items[i].ResourceVersion {
			return fmt.Sprintf("the resourceVersion of %s is %q, the handler has %q", list.Items[i].Name,
				list.Items[i].ResourceVersion, version), nil
		}
	}
	return "", nil
}

// TestBurstsOfErrors checks that the cache does not mistake other errors for missing permissions.
// During bursts of 500, 429, 410, 504 and connection resets no state is Forbidden or NotServed.
// Reads continue with the cached objects. In the end the handler has received everything, without
// duplicates.
func TestBurstsOfErrors(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "first"))
	u.grant(t, ns, "configmaps", "list", "watch")
	proxy := newFaultyServer(t, u)
	var mu sync.Mutex
	states := map[scopedcache.State]int{}
	c := u.startWithConfig(t, proxy.config,
		scopedcache.Options{
			PerNamespace:         true,
			AccessReviewInterval: 200 * time.Millisecond,
			OnStateChange: func(_ scopedcache.State, now scopedcache.ScopeState) {
				mu.Lock()
				defer mu.Unlock()
				states[now.State]++
			},
		}, cache.Options{})
	handle, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	handler := newLedger()
	_, err = handle.AddEventHandler(handler)
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
	answered := [5]int{} // requests of the informer, by kind of error
	// Each burst ends a watch. After each one client-go doubles its backoff, up to a minute.
	for burst := range answered {
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return answered[burst]
		}
		proxy.answerWith(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.HasSuffix(req.URL.Path, "/configmaps") { // a request of the informer, not an access review
				mu.Lock()
				answered[burst]++
				mu.Unlock()
			}
			switch burst {
			case 0:
				respondWithStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			case 1:
				respondWithStatus(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
			case 2:
				respondWithStatus(w, http.StatusGone, metav1.StatusReasonExpired)
			case 3:
				respondWithStatus(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
			default:
				panic(http.ErrAbortHandler) // resets the connection
			}
			return true
		})
		proxy.CloseClientConnections() // this ends the watch
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
		g.Eventually(handle.State).WithTimeout(patience).
			Should(And(HaveField("State", scopedcache.StateFailing), HaveField("LastError", HaveOccurred())))
		for range 100 { // all of these reads must succeed during the burst
			inTime, cancel := context.WithTimeout(ctx, 5*time.Second)
			g.Expect(handle.Get(inTime, client.ObjectKey{Namespace: ns, Name: "first"}, &corev1.ConfigMap{})).To(Succeed())
			cancel()
		}
		proxy.answerWith(nil)
		g.Eventually(func() (string, error) { return handler.diff(ctx, ns) }).WithTimeout(patience).Should(BeEmpty())
	}
	stopReading()
	g.Expect(<-reads).NotTo(HaveOccurred())
	g.Expect(handler.violations()).To(BeEmpty())
	mu.Lock()
	defer mu.Unlock()
	t.Logf("Requests of the informer that got 500, 429, 410, 504 and connection resets: %v; states: %v", answered,
		states)
	g.Expect(states).NotTo(HaveKey(scopedcache.StateForbidden))
	g.Expect(states).NotTo(HaveKey(scopedcache.StateNotServed))
	g.Expect(handle.List(ctx, &corev1.ConfigMapList{})).To(Succeed())
	handle.Release()
}

// TestStreamedListsAreWhole checks that a list that the API server streams, of objects of all sizes
// at once, is read as it was sent, in each representation, and that no second list was necessary.
func TestStreamedListsAreWhole(t *testing.T) {
	g := NewWithT(t)
	ns := createNamespace(t)
	for n := range 200 {
		object := configMap(ns, fmt.Sprintf("object-%03d", n))
		object.Data = map[string]string{"content": strings.Repeat(string(rune('a'+n%26)), n*n%3_000)}
		create(t, object)
	}
	u := newUser(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	c := u.start(t, scopedcache.Options{PerNamespace: true}, cache.Options{})
	metadata := &metav1.PartialObjectMetadataList{}
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	untyped := &unstructured.UnstructuredList{}
	untyped.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	for n, list := range []client.ObjectList{&corev1.ConfigMapList{}, untyped, metadata} {
		g.Expect(c.List(t.Context(), list, client.InNamespace(ns))).To(Succeed())
		want := list.DeepCopyObject().(client.ObjectList)
		g.Expect(admin.List(t.Context(), want, client.InNamespace(ns))).To(Succeed())
		g.Expect(contents(t, list)).To(HaveLen(200))
		g.Expect(contents(t, list)).To(Equal(contents(t, want)))
		g.Expect(u.requests.lists("/configmaps")).To(Equal(n+1), "%T", list)
	}
}

// contents returns the UID, version and data of each object of a list, by name.
func contents(t *testing.T, list client.ObjectList) map[string]any {
	t.Helper()
	g := NewWithT(t)
	found := map[string]any{}
	objects, err := meta.ExtractList(list)
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		g.Expect(err).NotTo(HaveOccurred())
		content := &unstructured.Unstructured{Object: fields}
		if content.GetName() != "kube-root-ca.crt" { // which the controller manager creates at any time
			found[content.GetName()] = []any{content.GetUID(), content.GetResourceVersion(), fields["data"]}
		}
	}
	return found
}

// respondWithStatus responds with a metav1.Status of this code and reason.
func respondWithStatus(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).
		Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure,
			Code:     code,
			Reason:   reason,
			Message:  strings.ToLower(string(reason)),
		})
}

// eventCount returns the number of add and update events that the handler received.
func (l *ledger) eventCount() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, times := range l.addsByUID {
		n += times
	}
	return n + l.updateCount
}

// versions returns the resourceVersions of the recorded objects, by UID.
func (l *ledger) versions() map[types.UID]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.versionByUID)
}

// versionsIn is versions for the objects in a namespace.
func (l *ledger) versionsIn(namespace string) map[types.UID]string {
	versions := l.versions()
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(versions, func(uid types.UID, _ string) bool { return l.namespaces[uid] != namespace })
	return versions
}
