package credential

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// issuingServer is an API server that issues tokens, and answers who has them with a status.
type issuingServer struct {
	*httptest.Server

	mu       sync.Mutex
	requests []authenticationv1.TokenRequest
	status   int
	life     time.Duration // by the token itself
}

func newIssuingServer(t *testing.T) *issuingServer {
	s := &issuingServer{status: http.StatusUnauthorized, life: 7 * time.Minute}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.URL.Path == reviewPath {
			w.WriteHeader(s.status)
			return
		}
		var request authenticationv1.TokenRequest
		_ = json.NewDecoder(r.Body).Decode(&request) // an empty one shows in the assertions
		s.requests = append(s.requests, request)
		payload, _ := json.Marshal(map[string]any{
			"aud": request.Spec.Audiences,
			"exp": time.Now().Add(s.life).Unix(),
		})
		request.Status = authenticationv1.TokenRequestStatus{
			Token:               jwt(string(payload)),
			ExpirationTimestamp: metav1.NewTime(time.Now().Add(10 * time.Minute)),
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(request)
	}))
	t.Cleanup(s.Close)
	return s
}

// A target determines the whole of a Resolution, and a token for it is used only as it says.
func TestResolveTarget(t *testing.T) {
	g := NewWithT(t)
	server := newIssuingServer(t)
	scheme := runtime.NewScheme()
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	accounts := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "red", UID: "1"},
	}).Build()
	ca, other := authority(t), authority(t)
	target := Target{Server: "https://api.example.com:6443", CAData: ca, Username: prefixed, StatesUID: true}
	var refuse error
	resolver := func(change func(*Target)) *targetResolver {
		named := target
		change(&named)
		issuer, err := newTokenIssuer(host{config: &rest.Config{Host: server.URL}}, nil, minLifetime)
		g.Expect(err).NotTo(HaveOccurred())
		issuer.host, err = newHostReview(&rest.Config{Host: server.URL})
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(issuer.host.close)
		return &targetResolver{
			serviceAccountResolver: &serviceAccountResolver{
				reference: func(client.Object) (types.NamespacedName, error) {
					return types.NamespacedName{Namespace: "team", Name: "red"}, nil
				},
				serviceAccounts: accounts,
				target:          &rest.Config{Host: server.URL},
			},
			targets: &targets{
				of:   func(client.Object) (Target, error) { return named, nil },
				host: &rest.Config{Host: server.URL},
				allow: func(context.Context, client.Object, types.NamespacedName, Target) error {
					return refuse
				},
				owner: func(string) (AudienceOwner, error) {
					return AudienceOwner{Server: named.Server, ServerName: named.ServerName, CAs: [][]byte{named.CAData}}, nil
				},
			},
			tokens: newTokenTargets(&tokens{issue: issuer.issue}),
			review: issuer.host,
		}
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "it"}}
	r := resolver(func(*Target) {})
	found, err := r.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found.Target.Host).To(Equal(target.Server))
	g.Expect(found.Target.CAData).To(Equal(ca))
	g.Expect(found.Target.ServerName).To(BeEmpty())
	g.Expect(found.UntrustedServer).To(BeTrue())
	g.Expect(found.Sharable).To(BeFalse())
	g.Expect(found.Impersonated).To(BeFalse())
	g.Expect(found.Expected.Username).To(Equal("cluster-1:team/red"))
	g.Expect(found.Expected.UID).To(BeEquivalentTo("1"))
	g.Expect(found.UID).To(BeEquivalentTo("1"))
	g.Expect(found.ServiceAccount.Name).To(Equal("red"))
	g.Expect(r.Reference(object)).To(Equal(found.Reference))

	c := found.Open()
	defer c.Close()
	g.Expect(c.Prepare(t.Context())).To(Succeed())
	derived, err := TargetAudience(target)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(server.requests).To(HaveLen(1))
	g.Expect(server.requests[0].Spec.Audiences).To(Equal([]string{derived}))
	g.Expect(*server.requests[0].Spec.ExpirationSeconds).To(BeEquivalentTo(600))
	g.Expect(server.requests[0].UID).To(BeEquivalentTo("1"))
	g.Expect(c.Expires()).To(BeTemporally("~", time.Now().Add(server.life), 2*time.Second), "the earlier one")

	for name, change := range map[string]func(*Target){
		"server":   func(t *Target) { t.Server = "https://api.example.com" },
		"CA":       func(t *Target) { t.CAData = other },
		"name":     func(t *Target) { t.ServerName = "kubernetes" },
		"audience": func(t *Target) { t.Audience = "a" },
		"username": func(t *Target) { t.Username = func(types.NamespacedName) string { return "red" } },
		"UID":      func(t *Target) { t.StatesUID = false },
	} {
		another, err := resolver(change).Resolve(t.Context(), object)
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(another.Key).NotTo(Equal(found.Key), name)
		g.Expect(another.Reference).NotTo(Equal(found.Reference), name)
	}
	withoutUID, err := resolver(func(t *Target) { t.StatesUID = false }).Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(withoutUID.Expected.UID).To(BeEmpty())
	same, err := resolver(func(t *Target) { t.Audience = derived }).Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(same.Key).To(Equal(found.Key), "the derived audience, by its name")

	// Two that want one audience: the owner is by the address, however it is written.
	shared := resolver(func(t *Target) { t.Audience = "a" })
	first, err := shared.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	inUse := first.Open()
	defer inUse.Close()
	g.Expect(inUse.Prepare(t.Context())).To(Succeed())
	g.Expect(server.requests[1].Spec.Audiences).To(Equal([]string{"a"}))
	spelled := target
	spelled.Server, spelled.Audience = "https://API.example.com.:6443/", "a"
	shared.targets.of = func(client.Object) (Target, error) { return spelled, nil }
	second, err := shared.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	both := second.Open()
	defer both.Close()
	g.Expect(both.Prepare(t.Context())).To(Succeed())
	spelled.Server = "https://api.example.org:6443"
	shared.targets.owner = func(string) (AudienceOwner, error) {
		return AudienceOwner{Server: spelled.Server, CAs: [][]byte{ca}}, nil
	}
	third, err := shared.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	moved := third.Open()
	defer moved.Close()
	g.Expect(moved.Prepare(t.Context())).To(MatchError(ContainSubstring("still in use for another API server")))

	server.mu.Lock()
	server.status = http.StatusCreated
	server.mu.Unlock()
	accepted, err := resolver(func(*Target) {}).Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	known := accepted.Open()
	defer known.Close()
	err = known.Prepare(t.Context())
	g.Expect(err).To(MatchError(identity.ErrTokenRequestFailed))
	g.Expect(strings.Contains(err.Error(), "HTTP status 201")).To(BeTrue(), err.Error())

	refuse = ErrPending
	r = resolver(func(*Target) {})
	_, err = r.Resolve(t.Context(), object)
	g.Expect(err).To(MatchError(ErrNotAllowed))
	g.Expect(r.tokens.byExtension).To(BeEmpty())
}
