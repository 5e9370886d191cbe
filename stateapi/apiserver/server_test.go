package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/latchkey-dev/latchkey/examples/extensionapi"
	"github.com/latchkey-dev/latchkey/examples/extensionapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

// asAlice are options by which every request is alice's.
func asAlice(t *testing.T) apiserver.ExtensionAPIServerOptions {
	t.Helper()
	options := complete(t)
	options.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, true, nil
	})
	return options
}

// running is a server that runs.
type running struct {
	server *apiserver.ExtensionAPIServer
	url    string
	client *http.Client
	stop   func() error // ends the server and returns the result of Run
}

// runServer serves a store as reservations of rooms.example.com until the test ends.
func runServer(t *testing.T, store any, options apiserver.ExtensionAPIServerOptions) *running {
	t.Helper()
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	options.Listener = listener
	server, err := extensionapi.NewServer(store, options)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- server.Run(ctx) }()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test of other things
	}
	r := &running{server: server, url: "https://" + listener.Addr().String(), client: &http.Client{Transport: transport}}
	r.stop = func() error {
		cancel()
		transport.CloseIdleConnections()
		err := <-result
		result <- err
		return err
	}
	t.Cleanup(func() { _ = r.stop() })
	g.Eventually(func() int {
		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/apis/rooms.example.com/v1alpha1", nil))
		return recorder.Code
	}).WithTimeout(patience).Should(Equal(http.StatusOK))
	return r
}

const reservations = "/apis/rooms.example.com/v1alpha1/namespaces/a/reservations"

// do sends a request, and returns status and body.
func (r *running) do(t *testing.T, method, path, contentType string, body any) (int, string) {
	t.Helper()
	g := NewWithT(t)
	data, ok := body.(string)
	if !ok && body != nil {
		encoded, err := json.Marshal(body)
		g.Expect(err).NotTo(HaveOccurred())
		data = string(encoded)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(data))
	g.Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Content-Type", contentType)
	resp, err := r.client.Do(req)
	g.Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return resp.StatusCode, string(answer)
}

const (
	patience  = 30 * time.Second // a safety bound
	jsonType  = "application/json"
	mergeType = "application/merge-patch+json"
)

// racing is a store whose object other writers change, so many times, between a read and the
// update.
type racing struct {
	extensionapi.Store
	overtake *int
}

func (s racing) Update(ctx apiserver.Context, r *v1alpha1.Reservation, options *metav1.UpdateOptions) (
	*v1alpha1.Reservation, error) {
	if *s.overtake > 0 {
		*s.overtake--
		_, err := s.Modify(ctx.Namespace, r.Name, func(current *v1alpha1.Reservation,
			_ bool) (*v1alpha1.Reservation, bool, error) {
			current.Spec.Seats++
			return current, true, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return s.Store.Update(ctx, r, options)
}

// A patch that other writers overtake is computed again. A client that asks for a version gets a
// conflict at once.
func TestOvertaken(t *testing.T) {
	g := NewWithT(t)
	store := racing{extensionapi.NewStore(), new(int)}
	store.Put(reservation("a", "a", "red"))
	r := runServer(t, store, asAlice(t))

	*store.overtake = 3
	code, answer := r.do(t, http.MethodPatch, reservations+"/a", mergeType, `{"spec":{"room":"blue"}}`)
	g.Expect(code).To(Equal(http.StatusOK), answer)
	current, err := store.Get(in(t, "a"), "a", &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(current.Spec).To(And(HaveField("Room", "blue"), HaveField("Seats", BeEquivalentTo(3))),
		"no writer's change is lost")

	*store.overtake = 100
	code, answer = r.do(t, http.MethodPatch, reservations+"/a", mergeType, `{"spec":{"room":"green"}}`)
	g.Expect(code).To(Equal(http.StatusConflict), answer)
	g.Expect(*store.overtake).To(Equal(95))

	current, err = store.Get(in(t, "a"), "a", &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	*store.overtake = 100
	current.Spec.Room = "green"
	code, answer = r.do(t, http.MethodPut, reservations+"/a", jsonType, current)
	g.Expect(code).To(Equal(http.StatusConflict), answer)
	g.Expect(*store.overtake).To(Equal(99))

	current.ResourceVersion = "" // a client that does not care
	*store.overtake = 2
	code, answer = r.do(t, http.MethodPut, reservations+"/a", jsonType, current)
	g.Expect(code).To(Equal(http.StatusOK), answer)
}

// recreated is a store whose object another writer deletes and creates again before an update.
type recreated struct{ extensionapi.Store }

func (s recreated) Update(ctx apiserver.Context, r *v1alpha1.Reservation, options *metav1.UpdateOptions) (
	*v1alpha1.Reservation, error) {
	s.Remove(ctx.Namespace, r.Name)
	s.Put(reservation(ctx.Namespace, r.Name, "new"))
	return s.Store.Update(ctx, r, options)
}

// An update of an object does not change another one that has its name by then.
func TestOvertakenByARecreation(t *testing.T) {
	g := NewWithT(t)
	store := recreated{extensionapi.NewStore()}
	store.Put(reservation("a", "a", "red"))
	r := runServer(t, store, asAlice(t))
	current, err := store.Get(in(t, "a"), "a", &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	current.ResourceVersion = ""
	code, answer := r.do(t, http.MethodPut, reservations+"/a", jsonType, current)
	g.Expect(code).To(Equal(http.StatusConflict), answer)
	g.Expect(answer).To(ContainSubstring("the precondition is UID"))
}

// created is a store in which another writer creates what an update is about to create.
type created struct {
	extensionapi.Store
}

func (s created) Create(ctx apiserver.Context, r *v1alpha1.Reservation, options *metav1.CreateOptions) (
	*v1alpha1.Reservation, error) {
	if _, err := s.Get(ctx, r.Name, &metav1.GetOptions{}); apierrors.IsNotFound(err) {
		s.Put(reservation(ctx.Namespace, r.Name, "other"))
	}
	return s.Store.Create(ctx, r, options)
}

func TestOvertakenByACreation(t *testing.T) {
	g := NewWithT(t)
	store := created{extensionapi.NewStore()}
	r := runServer(t, store, asAlice(t))
	code, answer := r.do(t, http.MethodPut, reservations+"/a", jsonType, reservation("a", "a", "red"))
	g.Expect(code).To(Equal(http.StatusOK), answer)
	current, err := store.Get(in(t, "a"), "a", &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(current.Spec.Room).To(Equal("red"))
}

// A store whose objects have no UID is refused, because the library would replace them.
type anonymous struct{ extensionapi.Store }

func (s anonymous) Get(ctx apiserver.Context, name string, options *metav1.GetOptions) (*v1alpha1.Reservation, error) {
	found, err := s.Store.Get(ctx, name, options)
	if err == nil {
		found.UID = ""
	}
	return found, err
}

func TestObjectWithoutUID(t *testing.T) {
	g := NewWithT(t)
	store := anonymous{extensionapi.NewStore()}
	store.Put(reservation("a", "a", "red"))
	r := runServer(t, store, asAlice(t))
	code, answer := r.do(t, http.MethodPatch, reservations+"/a", mergeType, `{"spec":{"room":"blue"}}`)
	g.Expect(code).To(Equal(http.StatusInternalServerError), answer)
	g.Expect(answer).To(ContainSubstring("reservation a has no UID"))
}

// The server sets system fields, whatever the client sends.
func TestSystemFields(t *testing.T) {
	g := NewWithT(t)
	store := extensionapi.NewStore()
	r := runServer(t, store, asAlice(t))
	sent := reservation("a", "", "red")
	sent.GenerateName, sent.DeletionTimestamp, sent.DeletionGracePeriodSeconds = "gen-", new(metav1.Now()), new(int64(3))
	for _, method := range []string{http.MethodPost, http.MethodPut} {
		path := reservations
		if method == http.MethodPut {
			sent.GenerateName, sent.Name, path = "", "put", reservations+"/put"
		}
		code, answer := r.do(t, method, path, jsonType, sent)
		g.Expect(code).To(Equal(http.StatusCreated), answer)
		var stored v1alpha1.Reservation
		g.Expect(json.Unmarshal([]byte(answer), &stored)).To(Succeed())
		g.Expect(stored.Name).To(Or(Equal("put"), MatchRegexp("^gen-.+")))
		g.Expect(stored.UID).NotTo(BeEmpty())
		g.Expect(stored.CreationTimestamp.IsZero()).To(BeFalse())
		g.Expect(stored.DeletionTimestamp).To(BeNil())
		g.Expect(stored.DeletionGracePeriodSeconds).To(BeNil())
	}
}

// noList has one method of another signature.
type noGet struct{ *memoryStore }

func (noGet) Get(string) string { return "" }

// byValue has a verb of the pointer only.
type byValue struct{ *memoryStore }

func (*byValue) Delete(apiserver.Context, string, *metav1.DeleteOptions) error { return nil }

// A verb does not get lost because its method has a mistake.
func TestOtherSignature(t *testing.T) {
	for store, want := range map[any]string{
		noGet{newStore(storeOptions{})}:   "Get is a method of apiserver_test.noGet, not that of Getter[",
		byValue{newStore(storeOptions{})}: "Delete is a method of *apiserver_test.byValue, not that of Deleter",
	} {
		_, err := extensionapi.NewServer(store, complete(t))
		NewWithT(t).Expect(err).To(MatchError(apiserver.ErrOtherSignature))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(want)))
	}
	_, err := extensionapi.NewServer(&byValue{newStore(storeOptions{})}, complete(t))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// Run starts the store, so that versions of another process are too old.
func TestRunBeginsServing(t *testing.T) {
	g := NewWithT(t)
	store := extensionapi.NewStore()
	store.Put(reservation("a", "a", "red"))
	before := list(t, store.MemoryStore, "", metav1.ListOptions{}).ResourceVersion
	r := runServer(t, store, asAlice(t))
	code, answer := r.do(t, http.MethodGet, reservations+"?watch=true&resourceVersion="+before, jsonType, nil)
	g.Expect(code).To(Equal(http.StatusGone), answer)
	code, answer = r.do(t, http.MethodGet, reservations, jsonType, nil)
	g.Expect(code).To(Equal(http.StatusOK), answer)
	g.Expect(answer).To(ContainSubstring(`"room":"red"`), "the objects stay")
}

// A server ends without an error when its context does, also before it could begin.
func TestRunEnds(t *testing.T) {
	g := NewWithT(t)
	r := runServer(t, extensionapi.NewStore(), asAlice(t))
	g.Expect(r.stop()).To(Succeed())
	g.Expect(r.server.Run(t.Context())).To(MatchError(apiserver.ErrStarted))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	server, err := extensionapi.NewServer(extensionapi.NewStore(), asAlice(t))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(server.Run(ended)).To(Succeed())
}

// A permission that is granted while the server starts is in time. One that is missing ends Run
// after five seconds in which the API server in front has answered.
func TestPermissionIsGrantedLater(t *testing.T) {
	for _, tc := range []struct {
		silent, granted, ends time.Duration
		expected              string
	}{
		{0, 3 * time.Second, 3 * time.Second, "BindAddress"}, // Run gets as far as that
		{6 * time.Second, 8 * time.Second, 8 * time.Second, "BindAddress"},
		{0, time.Hour, 5 * time.Second, "system:auth-delegator"},
		{6 * time.Second, time.Hour, 11 * time.Second, "system:auth-delegator"},
	} {
		options := asAlice(t)
		options.Authorizer, options.BindAddress = nil, "127.0.0.1"
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			began := time.Now()
			clients := fake.NewClientset()
			clients.PrependReactor("create", "selfsubjectaccessreviews",
				func(clientgotesting.Action) (bool, runtime.Object, error) {
					if time.Since(began) < tc.silent {
						return true, nil, apierrors.NewServiceUnavailable("starting")
					}
					review := &authorizationv1.SelfSubjectAccessReview{}
					review.Status.Allowed = time.Since(began) >= tc.granted
					return true, review, nil
				})
			options.Client = clients
			server, err := extensionapi.NewServer(extensionapi.NewStore(), options)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(server.Run(t.Context())).To(MatchError(ContainSubstring(tc.expected)))
			g.Expect(time.Since(began)).To(Equal(tc.ends))
		})
	}
}

// A listener that fails ends the server with an error, not the process.
func TestListener(t *testing.T) {
	g := NewWithT(t)
	options := asAlice(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	options.Listener = listener
	server, err := extensionapi.NewServer(extensionapi.NewStore(), options)
	g.Expect(err).NotTo(HaveOccurred())
	result := make(chan error, 1)
	go func() { result <- server.Run(t.Context()) }()
	g.Expect(listener.Close()).To(Succeed())
	g.Eventually(result).WithTimeout(patience).Should(Receive(MatchError(ContainSubstring("the listener failed"))))

	options = asAlice(t)
	options.Listener, err = net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	g.Expect(err).NotTo(HaveOccurred())
	server, err = extensionapi.NewServer(extensionapi.NewStore(), options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(server.Run(t.Context())).To(MatchError(ContainSubstring("host and a port")))

	options = asAlice(t)
	options.BindAddress = "127.0.0.1:none"
	server, err = extensionapi.NewServer(extensionapi.NewStore(), options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(server.Run(t.Context())).To(MatchError(ContainSubstring("BindAddress")))
}

// A Put object without a UID gets one, and keeps it.
func TestPutWithoutUID(t *testing.T) {
	g := NewWithT(t)
	s := newStore(storeOptions{})
	s.Put(reservation("a", "a", "red"))
	first, err := s.Get(in(t, "a"), "a", &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.UID).NotTo(BeEmpty())
	g.Expect(first.CreationTimestamp.IsZero()).To(BeFalse())
	again := reservation("a", "a", "red")
	again.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Reservation"))
	s.Put(again)
	second, err := s.Get(in(t, "a"), "a", &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second).To(Equal(first), "neither a UID nor a TypeMeta makes another version")

	_, err = s.Modify("a", "a", func(current *v1alpha1.Reservation, _ bool) (*v1alpha1.Reservation, bool, error) {
		current.UID = types.UID("another")
		return current, true, nil
	})
	g.Expect(err).NotTo(HaveOccurred())
	found := list(t, s, "", metav1.ListOptions{})
	g.Expect(names(found)).To(Equal([]string{"a/a"}))
	events, err := s.Watch(in(t, ""), &metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{string((<-events).Type), string((<-events).Type)}).To(Equal([]string{"DELETED", "ADDED"}))
}

// A table of a watch has rows for bookmarks, which no column sees.
func TestBookmarksOfTables(t *testing.T) {
	g := NewWithT(t)
	store := extensionapi.NewStore()
	store.Put(reservation("a", "a", "red"))
	r := runServer(t, store, asAlice(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		r.url+reservations+"?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&"+
			"resourceVersionMatch=NotOlderThan", nil)
	g.Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	resp, err := r.client.Do(req)
	g.Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	var seen []string
	for decoder := json.NewDecoder(resp.Body); len(seen) < 2; {
		var event struct {
			Type   string
			Object metav1.Table
		}
		g.Expect(decoder.Decode(&event)).To(Succeed())
		cells, err := json.Marshal(event.Object.Rows[0].Cells[:3])
		g.Expect(err).NotTo(HaveOccurred())
		seen = append(seen, event.Type+" "+string(bytes.TrimSpace(cells)))
	}
	g.Expect(seen).To(Equal([]string{`ADDED ["a","red",0]`, `BOOKMARK ["",null,null]`}))
}

// A user may have so many watches open, and so may all together. One more gets 429 and the reason.
// What has ended, also before it was served, does not count.
func TestWatchLimits(t *testing.T) {
	g := NewWithT(t)
	options := complete(t)
	options.MaxWatchesPerUser, options.MaxWatches = 2, 3
	options.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: req.Header.Get("User")}}, true, nil
	})
	r := runServer(t, extensionapi.NewStore(), options)
	begin := func(name, query, accept string) (status int, text string, end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+reservations+"?watch=1"+query, http.NoBody)
		g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set("User", name)
		req.Header.Set("Accept", accept)
		resp, err := r.client.Do(req)
		g.Expect(err).NotTo(HaveOccurred())
		end = func() {
			cancel()
			_ = resp.Body.Close()
		}
		if resp.StatusCode != http.StatusOK {
			answer, err := io.ReadAll(resp.Body)
			g.Expect(err).NotTo(HaveOccurred())
			text = string(answer)
		}
		t.Cleanup(end)
		return resp.StatusCode, text, end
	}
	for range 10 { // the library refuses these after it has begun the watch
		status, _, _ := begin("alice", "&includeObject=x&timeoutSeconds=-1",
			"application/json;as=Table;g=meta.k8s.io;v=v1")
		g.Expect(status).To(Equal(http.StatusBadRequest))
	}
	var endFirst func()
	g.Eventually(func() (status int) { // those that were refused end a little later
		status, _, endFirst = begin("alice", "", jsonType)
		return status
	}).WithTimeout(patience).Should(Equal(http.StatusOK))
	g.Eventually(func() (status int) {
		status, _, _ = begin("alice", "", jsonType)
		return status
	}).WithTimeout(patience).Should(Equal(http.StatusOK))
	status, text, _ := begin("alice", "", jsonType)
	g.Expect(status).To(Equal(http.StatusTooManyRequests))
	g.Expect(text).To(ContainSubstring(`user \"alice\" has 2 watches open`))
	status, _, _ = begin("bob", "", jsonType)
	g.Expect(status).To(Equal(http.StatusOK), "the limit of another user")
	status, text, _ = begin("bob", "", jsonType)
	g.Expect(status).To(Equal(http.StatusTooManyRequests))
	g.Expect(text).To(ContainSubstring("3 watches are open"))
	endFirst()
	g.Eventually(func() (status int) {
		status, _, _ = begin("bob", "", jsonType)
		return status
	}).WithTimeout(patience).Should(Equal(http.StatusOK))
}
