package scopedcache_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// ownClient returns a client of a cache whose reads include what it wrote.
func ownClient(t testing.TB, config *rest.Config, c *runningCache) client.Client {
	t.Helper()
	return cachedClient(t, config, c, scopedcache.NewClient)
}

// plainClient returns a client of controller-runtime that reads from a cache.
func plainClient(t testing.TB, config *rest.Config, c *runningCache) client.Client {
	t.Helper()
	return cachedClient(t, config, c, client.New)
}

func cachedClient(t testing.TB, config *rest.Config, c *runningCache, newClient client.NewClientFunc) client.Client {
	t.Helper()
	g := NewWithT(t)
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	idleClosers = append(idleClosers, httpClient.CloseIdleConnections)
	created, err := newClient(config, client.Options{
		HTTPClient: httpClient,
		Cache:      &client.CacheOptions{Reader: c.Cache, Unstructured: true},
	})
	g.Expect(err).NotTo(HaveOccurred())
	return created
}

// visible are the labels that the caches of these tests select.
var visible = map[string]string{"visible": "yes"}

// TestReadYourWrites writes and reads at random, in four goroutines with objects of their own,
// while watches are delayed. No read is older than what its goroutine has written, with and without
// a selector of the cache.
func TestReadYourWrites(t *testing.T) {
	for name, selector := range map[string]labels.Selector{
		"all":      nil,
		"selected": labels.SelectorFromSet(visible),
	} {
		t.Run(name, func(t *testing.T) { readYourWrites(t, selector) })
	}
}

func readYourWrites(t *testing.T, selector labels.Selector) {
	steps := testenv.Long(150, 2500)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "*")
	server := newFaultyServer(t, u)
	server.watchDelay.Store(int64(15 * time.Millisecond))
	lost := loseAnswers(server)
	c := u.startWithConfig(t, server.config, scopedcache.Options{
		PerNamespace:         true,
		AccessReviewInterval: endlessInterval,
	}, cache.Options{DefaultLabelSelector: selector})
	writer := ownClient(t, server.config, c)
	var goroutines sync.WaitGroup
	var waits [4][]time.Duration
	for i := range waits {
		goroutines.Go(func() {
			w := &ownWriter{
				t:       t,
				client:  writer,
				ns:      ns,
				id:      fmt.Sprintf("writer-%d", i),
				random:  rand.New(rand.NewPCG(seed, uint64(i))),
				lost:    lost,
				selects: selector != nil,
				objects: map[string]*ownObject{},
			}
			for step := range steps {
				if !w.step(step) {
					return
				}
			}
			waits[i] = w.waits
		})
	}
	goroutines.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(waits[:]...)))
	if t.Failed() {
		return
	}
	t.Logf("%d reads after writes: p50 %s, p99 %s, longest %s; %d lists", len(all), all[len(all)/2], all[len(all)*99/100],
		all[len(all)-1], u.requests.lists("/configmaps")+u.requests.lists("/configmaps visible=yes"))
	g.Expect(all).To(HaveLen(4 * steps))

	// Without the option, the same reads are stale.
	plain, stale := plainClient(t, server.config, c), 0
	for i := range 20 {
		object := configMap(ns, fmt.Sprintf("plain-%d", i))
		object.Labels = visible
		g.Expect(plain.Create(t.Context(), object)).To(Succeed())
		err := plain.Get(t.Context(), client.ObjectKeyFromObject(object), &corev1.ConfigMap{})
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
		if err != nil {
			stale++
		}
	}
	t.Logf("without the option, %d of 20 reads after a creation are stale", stale)
	g.Expect(stale).NotTo(BeZero())
}

// loseAnswers makes the proxy lose the answers to writes of names for which the result says so. The
// API server has executed them.
func loseAnswers(server *faultyServer) *sync.Map {
	var lost sync.Map
	target := server.Config.Handler
	server.answerWith(func(w http.ResponseWriter, req *http.Request) bool {
		name := req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
		if _, ok := lost.Load(name); !ok || req.Method == http.MethodGet {
			return false
		}
		lost.Delete(name)
		target.ServeHTTP(httptest.NewRecorder(), req)
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	return &lost
}

// ownObject is what a goroutine knows about one of its objects.
type ownObject struct {
	*corev1.ConfigMap
}

// ownWriter writes and reads the objects of one goroutine.
type ownWriter struct {
	t       *testing.T
	client  client.Client
	ns, id  string
	random  *rand.Rand
	lost    *sync.Map
	selects bool                  // the cache selects what is visible
	objects map[string]*ownObject // those that exist
	waits   []time.Duration
	did     []string
}

// shows reports whether the cache has the object.
func (w *ownWriter) shows(o *ownObject) bool {
	return o != nil && (!w.selects || o.Labels["visible"] == "yes")
}

// step writes an object and reads it. It returns false if the read is wrong.
func (w *ownWriter) step(n int) bool {
	name := fmt.Sprintf("%s-%d", w.id, w.random.IntN(5))
	w.did = append(w.did, "")
	err := w.write(n, &name)
	w.did[n] += " " + name
	if err != nil {
		w.t.Errorf("%s, step %d: %s: %v", w.id, n, w.did[n], err)
		return false
	}
	began := time.Now()
	err = w.read(name)
	w.waits = append(w.waits, time.Since(began))
	if err == nil { // an earlier write must not be forgotten too early
		err = w.read(fmt.Sprintf("%s-%d", w.id, w.random.IntN(5)))
	}
	if err != nil {
		w.t.Errorf("%s, step %d: %v\nafter %s", w.id, n, err, strings.Join(w.did[max(0, n-12):], ", "))
		return false
	}
	return true
}

// labelsFor returns labels that the cache selects, in most cases.
func (w *ownWriter) labelsFor() map[string]string {
	result := map[string]string{"owner": w.id}
	if w.random.IntN(5) > 0 {
		maps.Copy(result, visible)
	}
	return result
}

// write writes an object in a way that is possible.
func (w *ownWriter) write(n int, name *string) error {
	ctx, value := w.t.Context(), map[string]string{"n": fmt.Sprint(n)}
	existing := w.objects[*name]
	if w.random.IntN(40) == 0 {
		w.did[n] = "DeleteAllOf"
		return w.deleteAll(ctx)
	}
	if existing == nil {
		object := configMap(w.ns, *name)
		object.Data, object.Labels = value, w.labelsFor()
		if w.random.IntN(5) == 0 {
			object.Finalizers = []string{"example.com/own"}
		}
		switch w.random.IntN(4) {
		case 0:
			w.did[n] = "generateName"
			object.Name, object.GenerateName = "", *name+"-"
		case 1:
			w.did[n] = "apply"
			return w.apply(ctx, object)
		}
		w.did[n] += "create"
		if err := w.client.Create(ctx, object); err != nil {
			return err
		}
		*name = object.Name
		w.objects[*name] = &ownObject{object}
		return nil
	}
	if existing.DeletionTimestamp != nil {
		w.did[n] = "last finalizer"
		return w.finish(ctx, existing)
	}
	object := existing.DeepCopy()
	switch w.random.IntN(7) {
	case 0, 1:
		w.did[n] = "update"
		object.Data, object.Labels = value, w.labelsFor()
		if err := w.client.Update(ctx, object); err != nil {
			return err
		}
	case 2:
		w.did[n] = "patch"
		object.Data, object.Labels = value, w.labelsFor()
		if err := w.client.Patch(ctx, object, client.MergeFrom(existing.ConfigMap)); err != nil {
			return err
		}
	case 3:
		w.did[n] = "conflict"
		object.ResourceVersion = "1"
		if err := w.client.Update(ctx, object); !apierrors.IsConflict(err) {
			return fmt.Errorf("no conflict: %w", err)
		}
		return nil
	case 4:
		w.did[n] = "unknown update"
		object.Data, object.Labels = value, w.labelsFor()
		w.lost.Store(*name, nil)
		if err := w.client.Update(ctx, object); err == nil {
			return fmt.Errorf("the answer was not lost")
		}
		if err := admin.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
	default:
		w.did[n] = "delete"
		return w.remove(ctx, n, existing)
	}
	w.objects[*name] = &ownObject{object}
	return nil
}

func (w *ownWriter) apply(ctx context.Context, object *corev1.ConfigMap) error {
	config := corev1ac.ConfigMap(object.Name, object.Namespace).WithData(object.Data).WithLabels(object.Labels).
		WithFinalizers(object.Finalizers...)
	if err := w.client.Apply(ctx, config, client.FieldOwner("own")); err != nil {
		return err
	}
	object.UID, object.ResourceVersion = *config.UID, *config.ResourceVersion
	w.objects[object.Name] = &ownObject{object}
	return nil
}

// remove deletes an object, by its name alone, with what is known of it, or with preconditions.
func (w *ownWriter) remove(ctx context.Context, n int, existing *ownObject) error {
	var opts []client.DeleteOption
	object := configMap(w.ns, existing.Name)
	switch w.random.IntN(4) {
	case 0:
		object = existing.DeepCopy()
	case 1:
		opts = append(opts, client.Preconditions{UID: &existing.UID})
	case 2:
		w.did[n] = "unknown delete"
		w.lost.Store(existing.Name, nil)
	}
	err := w.client.Delete(ctx, object, opts...)
	if w.did[n] == "unknown delete" && err != nil {
		err = nil
	}
	if err != nil {
		return err
	}
	return w.removed(ctx, existing)
}

// removed records that an object was deleted, or is being deleted if it has a finalizer.
func (w *ownWriter) removed(ctx context.Context, existing *ownObject) error {
	object := &corev1.ConfigMap{}
	if err := admin.Get(ctx, client.ObjectKeyFromObject(existing), object); err == nil {
		w.objects[existing.Name] = &ownObject{object}
	} else if delete(w.objects, existing.Name); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// finish removes the last finalizer.
func (w *ownWriter) finish(ctx context.Context, existing *ownObject) error {
	object := existing.DeepCopy()
	object.Finalizers = nil
	if err := w.client.Update(ctx, object); err != nil {
		return err
	}
	delete(w.objects, existing.Name)
	return nil
}

func (w *ownWriter) deleteAll(ctx context.Context) error {
	err := w.client.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(w.ns), client.MatchingLabels{"owner": w.id})
	if err != nil {
		return err
	}
	for _, object := range maps.Clone(w.objects) {
		if err := w.removed(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// read reads what was written, in any representation, and compares it with what the goroutine
// knows.
func (w *ownWriter) read(name string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if w.random.IntN(3) == 0 {
		return w.list(ctx)
	}
	var object client.Object
	key := client.ObjectKey{Namespace: w.ns, Name: name}
	switch w.random.IntN(3) {
	case 0:
		object = &corev1.ConfigMap{}
	case 1:
		object = &unstructured.Unstructured{}
	case 2:
		object = &metav1.PartialObjectMetadata{}
	}
	object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	err := w.client.Get(ctx, key, object)
	expected := w.objects[name]
	switch {
	case !w.shows(expected) && apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("Get of a %T: %w", object, err)
	case !w.shows(expected):
		return fmt.Errorf("Get of a %T found %s, which should not be there", object, object.GetResourceVersion())
	case object.GetUID() != expected.UID || object.GetResourceVersion() != expected.ResourceVersion:
		return fmt.Errorf("Get of a %T found version %s instead of %s", object, object.GetResourceVersion(),
			expected.ResourceVersion)
	}
	return nil
}

func (w *ownWriter) list(ctx context.Context) error {
	list := &corev1.ConfigMapList{}
	opts := []client.ListOption{client.InNamespace(w.ns)}
	if w.random.IntN(2) == 0 {
		opts = append(opts, client.MatchingLabels{"owner": w.id})
	}
	if err := w.client.List(ctx, list, opts...); err != nil {
		return fmt.Errorf("List: %w", err)
	}
	found, expected := map[string]string{}, map[string]string{}
	for i := range list.Items {
		if list.Items[i].Labels["owner"] == w.id {
			found[list.Items[i].Name] = list.Items[i].ResourceVersion
		}
	}
	for name, object := range w.objects {
		if w.shows(object) {
			expected[name] = object.ResourceVersion
		}
	}
	if !maps.Equal(found, expected) {
		return fmt.Errorf("List found %v instead of %v", found, expected)
	}
	return nil
}

// A Get costs no memory for the promise while there is nothing to wait for.
func TestReadYourWritesCostsNothing(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "*")
	c := u.start(t, scopedcache.Options{PerNamespace: true}, cache.Options{})
	own, plain := ownClient(t, u.config, c), plainClient(t, u.config, c)
	object := configMap(ns, "a")
	g.Expect(own.Create(t.Context(), object)).To(Succeed())
	key := client.ObjectKeyFromObject(object)
	g.Expect(own.Get(t.Context(), key, object)).To(Succeed())
	allocations := func(reader client.Reader) float64 {
		return testing.AllocsPerRun(1000, func() {
			if err := reader.Get(t.Context(), key, object); err != nil {
				t.Error(err)
			}
		})
	}
	g.Expect(allocations(own)).To(Equal(allocations(plain)))
}
