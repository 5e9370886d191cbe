package extension_test

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
	"github.com/latchkey-dev/latchkey/stateapi/extension"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// complete returns options that need no API server.
func complete(t *testing.T) extension.ExtensionAPIServerOptions {
	t.Helper()
	authority, err := certs.NewAuthority("test")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	certificate, key, err := authority.Issue(certs.Request{Hosts: []string{"localhost"}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	content, err := dynamiccertificates.NewStaticCertKeyContent("test", certificate, key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return extension.ExtensionAPIServerOptions{
		GetOpenAPIDefinitions: v1alpha1.GetOpenAPIDefinitions, Certificate: content, BindAddress: "127.0.0.1:0",
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return nil, false, nil
		}),
		Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
	}
}

func newServer(t *testing.T, options extension.ExtensionAPIServerOptions) (*extension.ExtensionAPIServer, error) {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(extension.AddToScheme(scheme)).To(Succeed())
	return extension.NewExtensionAPIServer(scheme, serializer.NewCodecFactory(scheme), options)
}

// Options that cannot work are refused by name.
func TestOptions(t *testing.T) {
	for missing, change := range map[string]func(*extension.ExtensionAPIServerOptions){
		"GetOpenAPIDefinitions": func(o *extension.ExtensionAPIServerOptions) { o.GetOpenAPIDefinitions = nil },
		"Certificate":           func(o *extension.ExtensionAPIServerOptions) { o.Certificate = nil },
		"Authenticator":         func(o *extension.ExtensionAPIServerOptions) { o.Authenticator = nil },
		"Authorizer":            func(o *extension.ExtensionAPIServerOptions) { o.Authorizer = nil },
		"ClientCA needs an Authenticator": func(o *extension.ExtensionAPIServerOptions) {
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
	_, err := extension.NewExtensionAPIServer(nil, serializer.CodecFactory{}, complete(t))
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("scheme")))
	_, err = newServer(t, complete(t))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

func certificateOf(o *extension.ExtensionAPIServerOptions) []byte {
	certificate, _ := o.Certificate.CurrentCertKeyContent()
	return certificate
}

// onlyDelete lists and deletes, and cannot get.
type onlyDelete struct{ onlyList }

func (onlyDelete) Delete(extension.Context, string, *metav1.DeleteOptions) error { return nil }

type onlyList struct{}

func (onlyList) List(extension.Context, *metav1.ListOptions) (*v1alpha1.ReservationList, error) {
	return &v1alpha1.ReservationList{}, nil
}

// Stores that cannot be served are refused by name.
func TestInstallStore(t *testing.T) {
	g := NewWithT(t)
	server, err := newServer(t, complete(t))
	g.Expect(err).NotTo(HaveOccurred())
	kind := v1alpha1.GroupVersion.WithKind("Reservation")
	install := func(resource string, store any, options ...extension.StoreOption) error {
		return extension.InstallStore(server, &v1alpha1.Reservation{}, &v1alpha1.ReservationList{}, resource, "reservation",
			kind, store, options...)
	}
	var none *memoryStore
	g.Expect(install("a", nil)).To(MatchError(extension.ErrNilStore))
	g.Expect(install("a", none)).To(MatchError(extension.ErrNilStore))
	g.Expect(install("a", struct{}{})).To(MatchError(extension.ErrNoLister))
	g.Expect(install("a", onlyDelete{})).To(MatchError(extension.ErrNoGetter))
	g.Expect(install("", onlyList{})).To(MatchError(ContainSubstring("needs a plural and a singular name")))
	g.Expect(install("a", onlyList{}, extension.Columns(extension.Column[*metav1.Status]{Name: "X"}))).
		To(MatchError(ContainSubstring("the columns are of")))
	g.Expect(extension.InstallStore(server, &v1alpha1.Reservation{}, &v1alpha1.Reservation{}, "a", "b", kind, onlyList{})).
		To(MatchError(extension.ErrNotAList))
	g.Expect(extension.InstallStore(server, &v1alpha1.Reservation{}, &metav1.PartialObjectMetadataList{}, "a", "b", kind,
		onlyList{})).To(MatchError(extension.ErrNotAList))
	g.Expect(extension.InstallStore(server, &metav1.Status{}, &v1alpha1.ReservationList{}, "a", "b", kind, onlyList{})).
		To(MatchError(ContainSubstring("*v1.Status: object does not implement")))
	g.Expect(install("reservations", onlyList{})).To(Succeed())
	g.Expect(install("reservations", onlyList{})).To(MatchError(extension.ErrDuplicateStore))

	g.Expect(install("others", onlyList{})).To(MatchError(extension.ErrDuplicateStore), "one resource for a kind")
	g.Expect(install("a", onlyList{}, extension.Columns(extension.Column[*v1alpha1.Reservation]{Name: "X"}))).
		To(MatchError(ContainSubstring("column \"X\"")))

	answer := httptest.NewRecorder()
	server.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/apis", http.NoBody))
	g.Expect(answer.Code).To(Equal(http.StatusServiceUnavailable))
	g.Expect(answer.Header().Get("Retry-After")).NotTo(BeEmpty())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = server.Run(ctx)
	g.Expect(server.Run(ctx)).To(MatchError(extension.ErrStarted))
	g.Expect(install("later", onlyList{})).To(MatchError(extension.ErrStarted))
}
