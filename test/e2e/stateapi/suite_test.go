package stateapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/latchkey-dev/latchkey/examples/extensionapi"
	"github.com/latchkey-dev/latchkey/examples/extensionapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

const patience = testenv.Patience

var (
	env   testenv.Env
	cp    *controlplane.ControlPlane
	admin client.Client
)

func TestMain(m *testing.M) {
	verbose := flag.Bool("server-log", false, "print the log messages of the servers")
	flag.Parse()
	log := logr.Discard()
	if *verbose {
		log = zap.New(zap.UseDevMode(true))
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	os.Exit(testenv.Run(m, controlplane.Options{
		Aggregation:       true,
		ControllerManager: true,
		CRDs:              []string{"../../../config/crd"},
	}, &env,
		func(ctx context.Context) error {
			cp, admin = env.ControlPlane, env.Admin
			return admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "rooms"}})
		}))
}

var servers atomic.Int64

// served is an extension API server of reservations behind the API server.
type served struct {
	store     extensionapi.Store
	user      string // of the server
	config    *rest.Config
	authority *certs.Authority
	listener  net.Listener
	stop      func() // ends the server, and returns when Run has
	ended     chan struct{}
	err       error // of Run; read it after ended is closed
	server    *apiserver.ExtensionAPIServer
	watches   atomic.Int32 // begun
	service   string       // name of the APIService
	group     string
}

// watched is a store that counts watches.
type watched struct {
	extensionapi.Store
	watches *atomic.Int32
}

func (w watched) Watch(ctx apiserver.Context, options *metav1.ListOptions) (
	<-chan apiserver.WatchEvent[*v1alpha1.Reservation], error) {
	w.watches.Add(1)
	return w.Store.Watch(ctx, options)
}

const apiService = "v1alpha1.rooms.example.com"

// newServed returns a server that does not run yet. Its user has no permission.
func newServed(t *testing.T) *served {
	t.Helper()
	g := NewWithT(t)
	s := &served{
		store:   extensionapi.NewStore(),
		user:    "rooms-server-" + strconv.FormatInt(servers.Add(1), 10),
		service: apiService,
		group:   v1alpha1.GroupVersion.Group,
	}
	var err error
	s.config, err = cp.UserConfig(s.user)
	g.Expect(err).NotTo(HaveOccurred())
	s.authority, err = certs.NewAuthority("rooms")
	g.Expect(err).NotTo(HaveOccurred())
	s.listener, err = net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = s.listener.Close() })
	return s
}

// allow lets the server's user authenticate and authorize requests.
func (s *served) allow(t *testing.T) {
	t.Helper()
	subject := []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: s.user}}
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.user},
		Subjects:   subject,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: s.user},
		Subjects:   subject,
		RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName,
			Kind:     "Role",
			Name:     "extension-apiserver-authentication-reader",
		},
	})
}

// run starts the server with a certificate for the Service, and store. The server ends with the
// test.
func (s *served) run(t *testing.T, store any) {
	t.Helper()
	g := NewWithT(t)
	clients, err := kubernetes.NewForConfig(s.config)
	g.Expect(err).NotTo(HaveOccurred())
	certificate, key, err := s.authority.Issue(certs.Request{
		CommonName: "rooms",
		Hosts:      []string{"rooms.rooms.svc", "127.0.0.1", "localhost"},
		ValidFor:   time.Hour,
	})
	g.Expect(err).NotTo(HaveOccurred())
	content, err := dynamiccertificates.NewStaticCertKeyContent("rooms", certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	s.server, err = extensionapi.NewServer(store, apiserver.ExtensionAPIServerOptions{
		Client:      clients,
		Listener:    s.listener,
		Certificate: content,
	})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	server, ended := s.server, make(chan struct{})
	s.ended = ended
	go func() {
		defer close(ended)
		s.err = server.Run(ctx)
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(s.stop)
}

// register makes the API server forward requests to the server, and waits until it does.
func (s *served) register(t *testing.T) {
	t.Helper()
	s.apply(t, s.authority.PEM())
	eventually(t, func() string {
		select {
		case <-s.ended:
			return "the server ended: " + fmt.Sprint(s.err)
		default:
			return availabilityOf(t, s.service)
		}
	}).Should(ContainSubstring(`"status":"True"`))
	// Another controller of the API server forwards the requests.
	eventually(t, func() string { return tryKubectl(t, "get", "--raw", "/apis/"+s.group+"/v1alpha1") }).
		Should(ContainSubstring("APIResourceList"))
}

// apply writes Service and APIService.
func (s *served) apply(t *testing.T, caBundle []byte) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.listener.Addr().String())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	number, err := strconv.ParseInt(port, 10, 32)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "rooms", Name: "rooms"},
		Spec: corev1.ServiceSpec{
			Type:         corev1.ServiceTypeExternalName,
			ExternalName: "localhost",
			Ports:        []corev1.ServicePort{{Port: int32(number)}},
		},
	})
	service := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": s.group, "version": v1alpha1.GroupVersion.Version,
		"groupPriorityMinimum": int64(100), "versionPriority": int64(100),
		"caBundle": base64.StdEncoding.EncodeToString(caBundle),
		"service":  map[string]any{"namespace": "rooms", "name": "rooms", "port": number},
	}}}
	service.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   "apiregistration.k8s.io",
		Version: "v1",
		Kind:    "APIService",
	})
	service.SetName(s.service)
	create(t, service)
}

// availability returns the condition Available of the APIService.
func availability(t *testing.T) string {
	t.Helper()
	return availabilityOf(t, apiService)
}

func availabilityOf(t *testing.T, service string) string {
	t.Helper()
	return tryKubectl(t, "get", "apiservice", service, "-o", `jsonpath={.status.conditions[?(@.type=="Available")]}`)
}

// patchOf returns a patch of the APIService.
func patchOf(caBundle []byte) string {
	return `{"spec":{"caBundle":"` + base64.StdEncoding.EncodeToString(caBundle) + `"}}`
}

// replace runs another server, with an empty store, at the address of the one that has ended.
func (s *served) replace(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", s.listener.Addr().String())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	s.listener, s.store = listener, extensionapi.NewStore()
	s.run(t, s.store)
}

// serve runs a server with its own store behind the API server.
func serve(t *testing.T) *served {
	t.Helper()
	s := newServed(t)
	s.allow(t)
	s.run(t, watched{s.store, &s.watches})
	s.register(t)
	return s
}

// url returns the server's own address.
func (s *served) url(path string) string { return "https://" + s.listener.Addr().String() + path }

// create creates an object, and deletes it at the end of the test. A namespace of an earlier run
// may still be on its way out.
func create(t *testing.T, object client.Object) {
	t.Helper()
	eventually(t, func() error {
		err := admin.Create(t.Context(), object)
		if err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && !apierrors.IsAlreadyExists(err) {
			return StopTrying("creating").Wrap(err)
		}
		return err
	}).WithTimeout(2 * time.Minute).Should(Succeed())
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin.Delete(context.Background(), object)); err != nil {
			t.Error(err)
		}
	})
}

// kubectl runs kubectl as the administrator. It must succeed.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := cp.Kubectl(t.Context(), args...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return out
}

// tryKubectl is kubectl for polls: it returns the output, or else the error.
func tryKubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := cp.Kubectl(t.Context(), args...)
	if err != nil {
		return err.Error()
	}
	return out
}

// kubectlWith runs kubectl with a standard input.
func kubectlWith(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := cp.KubectlInput(t.Context(), input, args...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return out
}

// kubectlFails runs kubectl, which must fail, and returns what it says.
func kubectlFails(t *testing.T, args ...string) string {
	t.Helper()
	_, err := cp.Kubectl(t.Context(), args...)
	NewWithT(t).Expect(err).To(HaveOccurred())
	return err.Error()
}

// background is a kubectl that goes on.
type background struct {
	cmd    *exec.Cmd
	output *testutil.Output
	done   chan error
}

// kubectlBackground starts kubectl, which ends with the test.
func kubectlBackground(t *testing.T, environment []string, args ...string) *background {
	t.Helper()
	b := &background{output: &testutil.Output{}, done: make(chan error, 1)}
	b.cmd = exec.Command(filepath.Join(cp.Programs(), "kubectl"), append([]string{"--kubeconfig", cp.Kubeconfig()},
		args...)...)
	b.cmd.Env = append(os.Environ(), environment...)
	b.cmd.Stdout, b.cmd.Stderr = b.output, b.output
	NewWithT(t).Expect(b.cmd.Start()).To(Succeed())
	ended := make(chan struct{})
	go func() {
		b.done <- b.cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		<-ended
	})
	return b
}

// lines returns the lines that kubectl has written.
func (b *background) lines() []string {
	text := strings.TrimSpace(b.output.String())
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func eventually(t *testing.T, actual any) AsyncAssertion {
	t.Helper()
	return NewWithT(t).Eventually(actual).WithTimeout(patience).WithPolling(20 * time.Millisecond)
}

// reserve puts a reservation into the store.
func (s *served) reserve(name, room string, change ...func(*v1alpha1.Reservation)) {
	s.reserveIn("rooms", name, room, change...)
}

func (s *served) reserveIn(namespace, name, room string, change ...func(*v1alpha1.Reservation)) {
	r := &v1alpha1.Reservation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	_, err := s.store.Modify(namespace, name, func(current *v1alpha1.Reservation, found bool) (*v1alpha1.Reservation, bool,
		error) {
		if found {
			r = current
		}
		r.Spec.Room = room
		for _, f := range change {
			f(r)
		}
		return r, true, nil
	})
	if err != nil {
		panic(err)
	}
}

// status returns the status of an HTTP answer, and closes it.
func status(resp *http.Response, err error) string {
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	return fmt.Sprint(resp.StatusCode)
}

// body returns the body of an HTTP answer.
func body(t *testing.T, resp *http.Response, err error) string {
	t.Helper()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(data)
}

// roundTripper is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// clientset returns clients of the administrator.
func clientset(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	clients, err := kubernetes.NewForConfig(cp.Config())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return clients
}

// watchesSince returns a function that counts the watches that began since the call, with this text
// in their path. "kubectl get NAME -w" gets and then watches, and takes the first event for what it
// has printed already: a change between the two is never shown.
func watchesSince(t *testing.T) func(path string) func() int {
	t.Helper()
	before, err := os.ReadFile(cp.AuditLog())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return func(path string) func() int {
		return func() (began int) {
			log, err := os.ReadFile(cp.AuditLog())
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			for line := range bytes.Lines(log[len(before):]) {
				if bytes.Contains(line, []byte(path)) && bytes.Contains(line, []byte(`"verb":"watch"`)) &&
					bytes.Contains(line, []byte(`"stage":"ResponseStarted"`)) {
					began++
				}
			}
			return began
		}
	}
}
