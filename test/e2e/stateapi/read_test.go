package stateapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/examples/extensionapi/v1alpha1"
)

var reservations = v1alpha1.GroupVersion.WithResource("reservations")

// A store that only reads has the verbs of reading, and others are not allowed.
func TestDiscovery(t *testing.T) {
	g := NewWithT(t)
	s := newServed(t)
	s.allow(t)
	s.run(t, s.store.MemoryStore)
	s.register(t)
	resources := func() string {
		return kubectl(t, "api-resources", "--api-group=rooms.example.com", "-o", "wide", "--no-headers")
	}
	g.Expect(strings.Fields(resources())).To(Equal([]string{"reservations", "rsv", "rooms.example.com/v1alpha1", "true",
		"Reservation", "get,list,watch"}))
	s.reserve("a", "blue")
	g.Expect(kubectl(t, "get", "rsv", "a", "-n", "rooms", "-o", "name")).To(Equal("reservation.rooms.example.com/a\n"))
	g.Expect(kubectlFails(t, "delete", "rsv", "a", "-n", "rooms")).To(ContainSubstring("MethodNotAllowed"))
	g.Expect(kubectlFails(t, "patch", "rsv", "a", "-n", "rooms", "--type=merge", "-p", "{}")).
		To(ContainSubstring("MethodNotAllowed"))
}

// kubectl's ways to select, sort and show.
func TestGet(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	s.reserve("a", "red")
	s.reserve("b", "blue", func(r *v1alpha1.Reservation) {
		r.Labels, r.Spec.Seats = map[string]string{"floor": "2"}, 3
	})
	s.reserve("c", "red")
	names := func(args ...string) []string {
		out := kubectl(t, append([]string{"get", "reservations", "-n", "rooms", "-o", "name"}, args...)...)
		return strings.Fields(strings.ReplaceAll(out, "reservation.rooms.example.com/", ""))
	}
	g.Expect(strings.Split(kubectl(t, "get", "rsv", "-n", "rooms"), "\n")[0]).To(MatchRegexp(`^NAME +ROOM +SEATS +AGE$`))
	g.Expect(kubectl(t, "get", "rsv", "-n", "rooms", "-o", "wide")).To(MatchRegexp(`(?m)^b +blue +3 `))
	g.Expect(names()).To(Equal([]string{"a", "b", "c"}))
	g.Expect(names("--sort-by=.spec.room")).To(Equal([]string{"b", "a", "c"}))
	g.Expect(names("-l", "floor=2")).To(Equal([]string{"b"}))
	g.Expect(names("-l", "!floor")).To(Equal([]string{"a", "c"}))
	g.Expect(names("--field-selector=spec.room=red")).To(Equal([]string{"a", "c"}))
	g.Expect(names("--field-selector=spec.room!=red,metadata.name=b")).To(Equal([]string{"b"}))
	g.Expect(names("--field-selector=metadata.name=c")).To(Equal([]string{"c"}))
	g.Expect(kubectlFails(t, "get", "rsv", "-n", "rooms", "--field-selector=spec.seats=3")).
		To(And(ContainSubstring("BadRequest"), ContainSubstring("spec.seats")))
	g.Expect(kubectlFails(t, "get", "rsv", "-n", "rooms", "d")).To(ContainSubstring(
		`reservations.rooms.example.com "d" not found`))
}

// A list for which kubectl asks in pages, while objects come, go and change, has every object that
// is there all the time, once.
func TestChunks(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	var stable []string
	for i := range 20 {
		name := fmt.Sprintf("stable-%02d", i)
		stable = append(stable, name)
		s.reserve(name, "blue")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			s.reserve(fmt.Sprintf("stable-%02d", i%20), fmt.Sprint("room ", i))
			s.reserve(fmt.Sprintf("guest-%02d", i%7), "red")
			s.store.Remove("rooms", fmt.Sprintf("guest-%02d", (i+3)%7))
			s.reserve(fmt.Sprintf("stable-%02d-after", i%20), "red")
			s.store.Remove("rooms", fmt.Sprintf("stable-%02d-after", (i+5)%20))
		}
	})
	defer churn.Wait()
	defer cancel()
	for range 5 {
		out := kubectl(t, "get", "reservations", "-n", "rooms", "--chunk-size=2", "-o", "jsonpath={.items[*].metadata.name}")
		names := strings.Fields(out)
		g.Expect(slices.Compact(slices.Sorted(slices.Values(names)))).To(HaveLen(len(names)), "no duplicate")
		g.Expect(slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(stable, name) })).
			To(Equal(stable), "no gap, in order")
	}
}

// kubectl explain answers for every field.
func TestExplain(t *testing.T) {
	serve(t)
	eventually(t, func() error { _, err := cp.Kubectl(t.Context(), "explain", "reservations"); return err }).
		WithTimeout(2 * time.Minute).Should(Succeed())
	for path, says := range map[string]string{
		"reservation": "Reservation reserves a room", "reservation.metadata.labels": "Map of string keys",
		"reservation.spec": "What is reserved", "reservation.spec.room": "name of the room",
		"reservation.spec.seats": "how many seats", "reservation.spec.guests": "who comes",
	} {
		NewWithT(t).Expect(kubectl(t, "explain", path)).To(ContainSubstring(says), path)
	}
	NewWithT(t).Expect(kubectl(t, "explain", "reservation", "--recursive")).To(ContainSubstring("guests"))
}

// kubectl get -w shows what is there and what comes.
func TestGetWatch(t *testing.T) {
	s := serve(t)
	s.reserve("a", "blue")
	watchBegan := watchesSince(t)
	all := kubectlBackground(t, nil, "get", "rsv", "-n", "rooms", "-w", "--no-headers")
	one := kubectlBackground(t, nil, "get", "rsv", "a", "-n", "rooms", "-w", "--no-headers")
	eventually(t, all.lines).Should(HaveExactElements(MatchRegexp(`^a +blue `)))
	eventually(t, one.lines).Should(HaveExactElements(MatchRegexp(`^a +blue `)))
	eventually(t, watchBegan("/namespaces/rooms/reservations?")).Should(BeNumerically(">=", 2))
	s.reserve("b", "green")
	s.reserve("a", "red")
	eventually(t, one.lines).Should(HaveExactElements(MatchRegexp(`^a +blue `), MatchRegexp(`^a +red `)))
	eventually(t, all.lines).Should(HaveExactElements(MatchRegexp(`^a +blue `), MatchRegexp(`^b +green `),
		MatchRegexp(`^a +red `)))
}

// kubectl wait, with both of its ways to watch.
func TestWait(t *testing.T) {
	for _, feature := range []string{"true", "false"} {
		t.Run("WatchListClient="+feature, func(t *testing.T) {
			environment := []string{"KUBE_FEATURE_WatchListClient=" + feature}
			s := serve(t)
			s.reserve("a", "blue")
			wait := func(args ...string) *background {
				return kubectlBackground(t, environment, append([]string{"wait", "-n", "rooms", "--timeout=60s", "rsv/a"},
					args...)...)
			}
			eventually(t, wait("--for=jsonpath={.spec.room}=blue").done).Should(Receive(BeNil()), "true already")
			before := s.watches.Load()
			later := wait("--for=jsonpath={.spec.room}=red")
			gone := wait("--for=delete")
			eventually(t, s.watches.Load).Should(BeNumerically(">=", before+2), "both watch")
			s.reserve("a", "red")
			eventually(t, later.done).Should(Receive(BeNil()))
			s.store.Remove("rooms", "a")
			eventually(t, gone.done).Should(Receive(BeNil()))
		})
	}
}

// informed returns what an informer has: names and rooms, or names only.
func informed(informer cache.SharedIndexInformer) func() []string {
	return func() (have []string) {
		for _, object := range informer.GetStore().List() {
			switch o := object.(type) {
			case *unstructured.Unstructured:
				room, _, _ := unstructured.NestedString(o.Object, "spec", "room")
				have = append(have, o.GetName()+" "+room)
			case metav1.Object:
				have = append(have, o.GetName())
			}
		}
		slices.Sort(have)
		return have
	}
}

// Informers with the defaults of client-go, of whole objects and of metadata, sync, follow, and
// survive that the server is replaced by one without their versions.
func TestInformers(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	s.reserve("a", "blue")
	s.reserve("b", "blue")
	whole := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(cp.Config()), 0)
	meta := metadatainformer.NewSharedInformerFactory(metadata.NewForConfigOrDie(cp.Config()), 0)
	objects, names := whole.ForResource(reservations).Informer(), meta.ForResource(reservations).Informer()
	ctx, cancel := context.WithCancel(context.Background())
	whole.Start(ctx.Done())
	meta.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		whole.Shutdown()
		meta.Shutdown()
	})
	eventually(t, informed(objects)).Should(Equal([]string{"a blue", "b blue"}))
	eventually(t, informed(names)).Should(Equal([]string{"a", "b"}))
	g.Expect(objects.HasSynced()).To(BeTrue())
	s.reserve("a", "red")
	s.store.Remove("rooms", "b")
	eventually(t, informed(objects)).Should(Equal([]string{"a red"}))
	eventually(t, informed(names)).Should(Equal([]string{"a"}))

	s.stop()
	s.replace(t)
	s.reserve("c", "green")
	eventually(t, informed(objects)).WithTimeout(2 * time.Minute).Should(Equal([]string{"c green"}))
	eventually(t, informed(names)).WithTimeout(2 * time.Minute).Should(Equal([]string{"c"}))
	s.reserve("d", "green")
	eventually(t, informed(objects)).Should(Equal([]string{"c green", "d green"}))
}

// A watch from the version of a list has exactly the later events. Versions that are too old, or
// not there yet, are errors that clients know.
func TestResume(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	s.reserve("a", "blue")
	api := dynamic.NewForConfigOrDie(cp.Config()).Resource(reservations).Namespace("rooms")
	list, err := api.List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	s.reserve("a", "red")
	s.reserve("b", "red")
	s.store.Remove("rooms", "a")
	events, err := api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	g.Expect(err).NotTo(HaveOccurred())
	defer events.Stop()
	s.reserve("c", "red")
	var got []string
	for len(got) < 4 {
		event := <-events.ResultChan()
		got = append(got, string(event.Type)+" "+event.Object.(*unstructured.Unstructured).GetName())
	}
	g.Expect(got).To(Equal([]string{"MODIFIED a", "ADDED b", "DELETED a", "ADDED c"}))

	_, err = api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	g.Expect(apierrors.IsResourceExpired(err)).To(BeTrue(), "%v", err)
	ahead := fmt.Sprint(time.Now().Add(time.Hour).UnixMicro())
	_, err = api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: ahead})
	g.Expect(err).To(HaveOccurred())
	g.Expect(apierrors.IsTimeout(err)).To(BeTrue(), "%v", err)
	_, err = api.List(t.Context(), metav1.ListOptions{ResourceVersion: ahead})
	g.Expect(apierrors.IsTimeout(err)).To(BeTrue(), "%v", err)
	_, err = api.List(t.Context(), metav1.ListOptions{Continue: "garbage", Limit: 2})
	g.Expect(apierrors.IsResourceExpired(err)).To(BeTrue(), "%v", err)
}

// A server that ends ends its watches, and Run returns.
func TestShutdownDuringWatch(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	s.reserve("a", "blue")
	api := dynamic.NewForConfigOrDie(cp.Config()).Resource(reservations).Namespace("rooms")
	events, err := api.Watch(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer events.Stop()
	g.Expect((<-events.ResultChan()).Type).To(Equal(watch.Added))
	s.stop()
	g.Expect(s.err).NotTo(HaveOccurred())
	eventually(t, events.ResultChan()).Should(BeClosed())
	g.Expect(s.direct(t)(http.Header{})).To(ContainSubstring("connection refused"))
}
