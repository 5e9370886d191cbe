package stateapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func at(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }

func connected() clustercache.ConnectionState {
	return clustercache.ConnectionState{
		Extension:          client.ObjectKey{Namespace: "n", Name: "red"},
		UID:                "uid",
		Created:            at(0),
		ObservedGeneration: 3,
		Phase:              clustercache.PhaseConnected,
		Since:              at(2),
		Target:             "https://server",
		Source:             "serviceaccount a/b",
		Epoch:              4,
		Identity:           clustercache.Identity{Username: "system:serviceaccount:a:b", UID: "user", Groups: []string{"g"}},
		Healthy:            true,
		HealthSince:        at(3),
		TokenExpires:       at(60),
		CredentialSince:    at(6),
		Health:             clustercache.HealthCheckingState{LastProbeTime: at(5), LastProbeSuccessTime: at(5)},
		Watches: []clustercache.WatchState{{
			Name:       "w",
			Kind:       corev1.SchemeGroupVersion.WithKind("ConfigMap"),
			Scope:      clustercache.Scope{Namespace: "n", LabelSelector: labels.SelectorFromSet(labels.Set{"a": "b"})},
			Dependents: []types.UID{"d"},
		}},
		Scopes: []clustercache.ScopeState{
			{GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), State: clustercache.StateSynced, Objects: 7},
			{
				GVK:       corev1.SchemeGroupVersion.WithKind("Secret"),
				State:     clustercache.StateForbidden,
				Since:     at(4),
				LastError: apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no")),
			},
		},
	}
}

func TestConnectionOf(t *testing.T) {
	g := NewWithT(t)
	c := connectionOf(connected())
	g.Expect(c.Name).To(Equal("red"))
	g.Expect(c.Namespace).To(Equal("n"))
	g.Expect(c.CreationTimestamp.Time).To(Equal(at(0)))
	g.Expect(c.Labels).To(Equal(map[string]string{v1alpha1.ExtensionUIDLabel: "uid"}))
	s := c.Status
	g.Expect(s.State).To(Equal("Connected"))
	g.Expect(s.Since.Time).To(Equal(at(2)))
	g.Expect(s.Identity.Username).To(Equal("system:serviceaccount:a:b"))
	g.Expect(s.TokenExpires.Time).To(Equal(at(60)))
	g.Expect(s.CredentialSince.Time).To(Equal(at(6)))
	g.Expect([]int32{s.Scopes, s.ForbiddenScopes}).To(Equal([]int32{2, 1}))
	g.Expect(s.Objects).To(BeNil(), "objects are counted on get only")
	g.Expect(s.Probe).To(BeZero(), "times of probes are filled in on read")
	g.Expect(s.Watches).To(Equal([]v1alpha1.WatchStatus{{
		Name:       "w",
		Dependents: []types.UID{"d"},
		Selection:  v1alpha1.Selection{APIVersion: "v1", Kind: "ConfigMap", Namespace: "n", LabelSelector: "a=b"},
	}}))
	g.Expect(s.Conditions).To(Equal([]metav1.Condition{
		{
			Type:               "Connected",
			Status:             "True",
			Reason:             "Connected",
			ObservedGeneration: 3,
			LastTransitionTime: metav1.NewTime(at(2)),
		},
		{
			Type:               "Healthy",
			Status:             "True",
			Reason:             "Healthy",
			ObservedGeneration: 3,
			LastTransitionTime: metav1.NewTime(at(3)),
		},
	}))
}

// What is connected and gets no work done is Degraded, and its condition Healthy says why. What is
// muted is shown, and changes nothing.
func TestDegraded(t *testing.T) {
	g := NewWithT(t)
	degraded := connected()
	degraded.Problems = []clustercache.Problem{
		{Reason: clustercache.ProblemScopesForbidden, Message: "Secret: no", Since: at(7)},
		{Reason: clustercache.ProblemRequestsRefused, Message: "may not create pods", Since: at(5)},
		{Reason: clustercache.ProblemKindsNotServed, Message: "Thing", Since: at(1), Muted: true},
	}
	s := connectionOf(degraded).Status
	g.Expect([]string{s.State, s.Reason, s.Message}).To(Equal([]string{"Degraded", "ScopesForbidden", "Secret: no"}))
	g.Expect(s.Since.Time).To(Equal(at(5)))
	g.Expect(s.Problems).To(HaveLen(3))
	g.Expect(s.Problems[2]).To(Equal(v1alpha1.Problem{
		Reason:  "KindsNotServed",
		Message: "Thing",
		Since:   &metav1.Time{Time: at(1)},
		Muted:   true,
	}))
	g.Expect(s.Conditions[0].Status).To(Equal(metav1.ConditionTrue), "it is connected")
	healthy := s.Conditions[1]
	g.Expect([]string{string(healthy.Status), healthy.Reason, healthy.Message}).To(Equal([]string{"False",
		"ScopesForbidden", "Secret: no"}))
	g.Expect(healthy.LastTransitionTime.Time).To(Equal(at(5)))
	degraded.Problems = degraded.Problems[2:]
	s = connectionOf(degraded).Status
	g.Expect([]string{s.State, s.Reason}).To(Equal([]string{"Connected", ""}))
	g.Expect(s.Problems).To(HaveLen(1))
	g.Expect(s.Conditions[1].Status).To(Equal(metav1.ConditionTrue))
}

// The time of a condition is that of its last change, although a problem that ends leaves none.
func TestKeepTransition(t *testing.T) {
	of := func(status metav1.ConditionStatus, minute int) []metav1.Condition {
		return []metav1.Condition{{Type: "Connected", Status: status, LastTransitionTime: metav1.NewTime(at(minute))}}
	}
	for name, test := range map[string]struct {
		was, now []metav1.Condition
		minute   int
	}{
		"new":                      {nil, of("True", 3), 3},
		"the same":                 {of("True", 5), of("True", 3), 5},
		"the same, later":          {of("True", 5), of("True", 6), 6},
		"changed":                  {of("True", 5), of("False", 6), 6},
		"changed, as if it before": {of("False", 5), of("True", 3), 9},
		"changed at that time":     {of("False", 5), of("True", 5), 9},
	} {
		keepTransition(test.was, test.now, at(9))
		NewWithT(t).Expect(test.now[0].LastTransitionTime.Time).To(Equal(at(test.minute)), name)
	}
	was, now := of("False", 5), of("False", 6)
	was[0].Type, now[0].Type = "Healthy", "Healthy"
	keepTransition(was, now, at(9))
	NewWithT(t).Expect(now[0].LastTransitionTime.Time).To(Equal(at(5)), "another problem")
}

// A retry of a connection that was lost shows as Disconnected, and changes nothing.
func TestRetriesChangeNothing(t *testing.T) {
	g := NewWithT(t)
	lost := clustercache.ConnectionState{
		Extension:         client.ObjectKey{Name: "red"},
		Phase:             clustercache.PhaseDisconnected,
		Reason:            clustercache.ReasonUnreachable,
		Message:           "down",
		Since:             at(1),
		DisconnectedSince: at(1),
		HealthSince:       at(1),
	}
	before := connectionOf(lost)
	g.Expect(before.Status.State).To(Equal("Disconnected"))
	for minute, phase := range []clustercache.Phase{clustercache.PhaseConnecting, clustercache.PhaseDisconnected} {
		retry := lost
		retry.Phase, retry.Since = phase, at(10+minute)
		retry.Health.ConsecutiveFailures, retry.Health.LastProbeTime = minute+1, at(10+minute)
		g.Expect(connectionOf(retry)).To(Equal(before))
	}
	first := lost
	first.Phase, first.Reason, first.Epoch = clustercache.PhaseConnecting, clustercache.ReasonNotStarted, 0
	g.Expect(connectionOf(first).Status.State).To(Equal("Connecting"))
	first.Phase = clustercache.PhaseDisconnected
	g.Expect(connectionOf(first).Status.State).To(Equal("Connecting"), "before the first connect begins")
	first.Epoch = 2
	g.Expect(connectionOf(first).Status.State).To(Equal("Disconnected"), "the extension names nothing any more")
	for _, condition := range before.Status.Conditions {
		g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(condition.Reason).NotTo(BeEmpty())
		g.Expect(condition.LastTransitionTime.Time).To(Equal(at(1)))
	}
}

func TestIdentityText(t *testing.T) {
	for _, test := range []struct{ identity, source, text string }{
		{"system:serviceaccount:a:b", "serviceaccount a/b", "system:serviceaccount:a:b"},
		{"", "serviceaccount a/b", "system:serviceaccount:a:b"},
		{"", "secret a/b, key value", "secret a/b, key value"},
		{"", "", ""},
	} {
		c := &v1alpha1.Connection{Status: v1alpha1.ConnectionStatus{Source: test.source}}
		if test.identity != "" {
			c.Status.Identity = &v1alpha1.Identity{Username: test.identity}
		}
		NewWithT(t).Expect(identityText(c)).To(Equal(test.text))
	}
}

func TestScopesOf(t *testing.T) {
	g := NewWithT(t)
	scopes := scopesOf(connected())
	g.Expect(scopes).To(HaveLen(2))
	forbidden := scopes[1]
	g.Expect(forbidden.Namespace).To(Equal("n"), "that of the extension")
	g.Expect(forbidden.Status.Extension).To(Equal("red"))
	g.Expect([]string{forbidden.Status.State, forbidden.Status.Reason, forbidden.Status.Kind}).
		To(Equal([]string{"Forbidden", "Forbidden", "Secret"}))
	g.Expect(forbidden.Status.Message).To(ContainSubstring("secrets is forbidden"))
	g.Expect(forbidden.UID).NotTo(Equal(scopes[0].UID))
	for reason, err := range map[string]error{"": nil, "NoMatch": &meta.NoKindMatchError{}, "Error": errors.New("x"),
		"NotFound": errors.Wrap(apierrors.NewNotFound(schema.GroupResource{}, "x"), "wrapped")} {
		g.Expect(reasonOf(clustercache.ScopeState{LastError: err})).To(Equal(reason))
	}
}

// Names depend on what is read only, and are valid for names of any length.
func TestScopeName(t *testing.T) {
	g := NewWithT(t)
	scope := clustercache.ScopeState{
		GVK:            corev1.SchemeGroupVersion.WithKind("Secret"),
		Representation: "Typed",
		Scope:          clustercache.Scope{Namespace: "n"},
	}
	name := scopeName("red", scope)
	g.Expect(name).To(Equal("red-70dbdbad0d"), "the same in every process")
	same := scope
	same.State, same.Objects, same.Dependents = clustercache.StateFailing, 5, []string{"w"}
	g.Expect(scopeName("red", same)).To(Equal(name))
	names := map[string]bool{name: true}
	for _, change := range []func(*clustercache.ScopeState){
		func(s *clustercache.ScopeState) { s.GVK.Kind = "ConfigMap" },
		func(s *clustercache.ScopeState) { s.GVK.Version = "v2" },
		func(s *clustercache.ScopeState) { s.Representation = "Metadata" },
		func(s *clustercache.ScopeState) { s.Scope.Namespace = "" },
		func(s *clustercache.ScopeState) { s.Scope.LabelSelector = labels.SelectorFromSet(labels.Set{"a": "b"}) },
	} {
		other := scope
		change(&other)
		names[scopeName("red", other)] = true
	}
	g.Expect(names).To(HaveLen(6))
	long := strings.Repeat("a", 241) + "." + strings.Repeat("b", 11)
	g.Expect(validation.IsDNS1123Subdomain(scopeName(long, scope))).To(BeEmpty())
	g.Expect(scopeName(long, scope)).NotTo(Equal(scopeName(long[:252], scope)), "the hash has the whole name")
}

// newStateAPI returns a state API of a fake that does not serve.
func newStateAPI(t *testing.T, connections clustercache.ClusterCache) *StateAPI {
	t.Helper()
	g := NewWithT(t)
	authority, err := certs.NewAuthority("test")
	g.Expect(err).NotTo(HaveOccurred())
	certificate, key, err := authority.Issue(certs.Request{Hosts: []string{"localhost"}})
	g.Expect(err).NotTo(HaveOccurred())
	content, err := dynamiccertificates.NewStaticCertKeyContent("test", certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	server := apiserver.ExtensionAPIServerOptions{
		Certificate: content,
		Authorizer:  authorizerfactory.NewAlwaysAllowAuthorizer(),
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return nil, false, nil
		}),
	}
	s, err := New(connections, Options{Server: server})
	g.Expect(err).NotTo(HaveOccurred())
	server.GetOpenAPIDefinitions = v1alpha1.GetOpenAPIDefinitions
	_, err = New(connections, Options{Server: server})
	g.Expect(err).To(MatchError(ContainSubstring("GetOpenAPIDefinitions must not be set")))
	_, err = New(nil, Options{})
	g.Expect(err).To(MatchError(ContainSubstring("ClusterCache is missing")))
	return s
}

// What is stored follows the connections, and what changes all the time is as of the answer.
func TestUpdate(t *testing.T) {
	g := NewWithT(t)
	key := client.ObjectKey{Name: "red"}
	cache := fake.NewFakeCache(fakeclient.NewClientBuilder().Build(), key)
	t.Cleanup(cache.Close)
	s := newStateAPI(t, cache)
	ctx := apiserver.Context{Context: t.Context()}
	list := func() *v1alpha1.ConnectionList {
		found, err := s.states.List(ctx, &metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	s.update(ctx, key)
	first := list()
	g.Expect(first.Items).To(HaveLen(1))
	g.Expect(first.Items[0].Status.State).To(Equal("Connected"))
	g.Expect(first.Items[0].Status.Objects).To(BeNil())
	cache.PassProbe(key)
	s.update(ctx, key)
	g.Expect(list().ResourceVersion).To(Equal(first.ResourceVersion), "a probe is no change")
	g.Expect(list().Items[0].Status.Probe.LastTime.Time).To(BeTemporally(">=", first.Items[0].Status.Probe.LastTime.Time))
	cache.FailProbe(key)
	cache.FailProbe(key)
	g.Expect(list().Items[0].Status.Probe.Failures).To(BeEquivalentTo(2), "as of the answer, before any update")
	s.update(ctx, key)
	failing := list()
	g.Expect(failing.ResourceVersion).NotTo(Equal(first.ResourceVersion))
	g.Expect(failing.Items[0].Status.Conditions[1].Status).To(Equal(metav1.ConditionFalse))
	one, err := s.states.Get(ctx, "red", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(one.Status.Objects).NotTo(BeNil())

	cache.Disconnect(key, clustercache.ReasonUnreachable)
	s.update(ctx, key)
	g.Expect(list().Items[0].Status.Reason).To(Equal("Unreachable"))
	cache.Disconnect(key, clustercache.ReasonDeleted)
	s.update(ctx, key)
	g.Expect(list().Items).To(BeEmpty())
	g.Expect(s.scopeNames).To(BeEmpty())
	g.Expect(s.NeedLeaderElection()).To(BeTrue())
}
