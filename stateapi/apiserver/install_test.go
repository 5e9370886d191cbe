package apiserver_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"

	"github.com/latchkey-dev/latchkey/examples/extensionapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// complete returns options that need no API server.
func complete(t *testing.T) apiserver.ExtensionAPIServerOptions {
	t.Helper()
	authority, err := certs.NewAuthority("test")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	certificate, key, err := authority.Issue(certs.Request{Hosts: []string{"localhost"}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	content, err := dynamiccertificates.NewStaticCertKeyContent("test", certificate, key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return apiserver.ExtensionAPIServerOptions{
		GetOpenAPIDefinitions: v1alpha1.GetOpenAPIDefinitions,
		Certificate:           content,
		BindAddress:           "127.0.0.1:0",
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return nil, false, nil
		}),
		Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
	}
}

func newServer(t *testing.T, options apiserver.ExtensionAPIServerOptions) (*apiserver.ExtensionAPIServer, error) {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(apiserver.AddToScheme(scheme)).To(Succeed())
	return apiserver.NewExtensionAPIServer(scheme, serializer.NewCodecFactory(scheme), options)
}

// Options that cannot work are refused by name.
func TestOptions(t *testing.T) {
	for missing, change := range map[string]func(*apiserver.ExtensionAPIServerOptions){
		"GetOpenAPIDefinitions": func(o *apiserver.ExtensionAPIServerOptions) { o.GetOpenAPIDefinitions = nil },
		"Certificate":           func(o *apiserver.ExtensionAPIServerOptions) { o.Certificate = nil },
		"Authenticator":         func(o *apiserver.ExtensionAPIServerOptions) { o.Authenticator = nil },
		"Authorizer":            func(o *apiserver.ExtensionAPIServerOptions) { o.Authorizer = nil },
		"ClientCA needs an Authenticator": func(o *apiserver.ExtensionAPIServerOptions) {
			o.Authenticator, o.Client = nil, &kubernetes.Clientset{}
			content, err := dynamiccertificates.NewStaticCAContent("test", certificateOf(o))
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			o.ClientCA = content
		},
	} {
		options := complete(t)
		change(&options)
		_, err := newServer(t, options)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(missing)))
	}
	_, err := apiserver.NewExtensionAPIServer(nil, serializer.CodecFactory{}, complete(t))
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("scheme")))
	_, err = newServer(t, complete(t))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

func certificateOf(o *apiserver.ExtensionAPIServerOptions) []byte {
	certificate, _ := o.Certificate.CurrentCertKeyContent()
	return certificate
}

// onlyDelete lists and deletes, and cannot get.
type onlyDelete struct{ onlyList }

func (onlyDelete) Delete(apiserver.Context, string, *metav1.DeleteOptions) error { return nil }

type onlyList struct{}

func (onlyList) List(apiserver.Context, *metav1.ListOptions) (*v1alpha1.ReservationList, error) {
	return &v1alpha1.ReservationList{}, nil
}

// Stores that cannot be served are refused by name.
func TestInstallStore(t *testing.T) {
	g := NewWithT(t)
	server, err := newServer(t, complete(t))
	g.Expect(err).NotTo(HaveOccurred())
	kind := v1alpha1.GroupVersion.WithKind("Reservation")
	install := func(resource string, store any, options ...apiserver.StoreOption) error {
		return apiserver.InstallStore(server, &v1alpha1.Reservation{}, &v1alpha1.ReservationList{}, resource, "reservation",
			kind, store, options...)
	}
	var none *memoryStore
	g.Expect(install("a", nil)).To(MatchError(apiserver.ErrNilStore))
	g.Expect(install("a", none)).To(MatchError(apiserver.ErrNilStore))
	g.Expect(install("a", struct{}{})).To(MatchError(apiserver.ErrNoLister))
	g.Expect(install("a", onlyDelete{})).To(MatchError(apiserver.ErrNoGetter))
	g.Expect(install("", onlyList{})).To(MatchError(ContainSubstring("needs a plural and a singular name")))
	g.Expect(install("a", onlyList{}, apiserver.Columns(apiserver.Column[*metav1.Status]{Name: "X"}))).
		To(MatchError(ContainSubstring("the columns are of")))
	g.Expect(apiserver.InstallStore(server, &v1alpha1.Reservation{}, &v1alpha1.Reservation{}, "a", "b", kind, onlyList{})).
		To(MatchError(apiserver.ErrNotAList))
	g.Expect(apiserver.InstallStore(server, &v1alpha1.Reservation{}, &metav1.PartialObjectMetadataList{}, "a", "b", kind,
		onlyList{})).To(MatchError(apiserver.ErrNotAList))
	g.Expect(apiserver.InstallStore(server, &metav1.Status{}, &v1alpha1.ReservationList{}, "a", "b", kind, onlyList{})).
		To(MatchError(ContainSubstring("*v1.Status: object does not implement")))
	g.Expect(install("reservations", onlyList{})).To(Succeed())
	g.Expect(install("reservations", onlyList{})).To(MatchError(apiserver.ErrDuplicateStore))

	g.Expect(install("others", onlyList{})).To(MatchError(apiserver.ErrDuplicateStore), "one resource for a kind")
	g.Expect(install("a", onlyList{}, apiserver.Columns(apiserver.Column[*v1alpha1.Reservation]{Name: "X"}))).
		To(MatchError(ContainSubstring("column \"X\"")))

	answer := httptest.NewRecorder()
	server.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/apis", http.NoBody))
	g.Expect(answer.Code).To(Equal(http.StatusServiceUnavailable))
	g.Expect(answer.Header().Get("Retry-After")).NotTo(BeEmpty())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = server.Run(ctx)
	g.Expect(server.Run(ctx)).To(MatchError(apiserver.ErrStarted))
	g.Expect(install("later", onlyList{})).To(MatchError(apiserver.ErrStarted))
}
