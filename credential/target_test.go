package credential

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

func authority(t *testing.T) []byte {
	t.Helper()
	a, err := certs.NewAuthority("authority")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return a.PEM()
}

func prefixed(account types.NamespacedName) string { return "cluster-1:" + account.String() }

func TestTargetAudience(t *testing.T) {
	g := NewWithT(t)
	first, second := authority(t), authority(t)
	both := append(append([]byte(nil), first...), second...)
	reversed := append(append([]byte(nil), second...), first...)
	audience := func(ca []byte, name string) string {
		found, err := TargetAudience(Target{CAData: ca, ServerName: name})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(MatchRegexp("^latchkey:[0-9a-f]{64}$"))
		return found
	}
	own := audience(first, "api.example.com")
	g.Expect(audience(append([]byte("a comment\n"), append(first, first...)...), "API.example.com.")).To(Equal(own))
	g.Expect(audience(both, "api.example.com")).To(Equal(audience(reversed, "api.example.com")))
	for name, other := range map[string]string{
		"another authority": audience(second, "api.example.com"),
		"one more":          audience(both, "api.example.com"),
		"another name":      audience(first, "api.example.org"),
		"an address":        audience(first, "192.0.2.1"),
	} {
		g.Expect(other).NotTo(Equal(own), name)
	}
	g.Expect(audience(first, "[2001:DB8::1]")).To(Equal(audience(first, "2001:db8:0::1")))
	unnamed := Target{Server: "https://API.example.com:6443/path", CAData: first}
	g.Expect(TargetAudience(unnamed)).To(Equal(own), "by the host of the address")
	unnamed.ServerName = "api.example.org"
	g.Expect(TargetAudience(unnamed)).NotTo(Equal(own))
	_, err := TargetAudience(Target{CAData: []byte("nothing"), ServerName: "api.example.com"})
	g.Expect(err).To(MatchError(ContainSubstring("holds no certificate")))
	_, err = TargetAudience(Target{CAData: first})
	g.Expect(err).To(MatchError(ContainSubstring("cannot be parsed")))
}

// Each target that could harm is refused, and the message says why.
func TestRefusedTargets(t *testing.T) {
	ca, other := authority(t), authority(t)
	derived, err := TargetAudience(Target{CAData: other, ServerName: "api.example.com"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	account := types.NamespacedName{Namespace: "team", Name: "red"}
	at := func(server string) func(*Target) { return func(t *Target) { t.Server = server } }
	named := func(audience string) func(*Target) { return func(t *Target) { t.Audience = audience } }
	for name, tc := range map[string]struct {
		change func(*Target)
		is     error
		says   string
	}{
		"http":         {at("http://api.example.com"), ErrInvalidReference, "over https:// only"},
		"no scheme":    {at("api.example.com"), ErrInvalidReference, "cannot be parsed"},
		"a password":   {at("https://a:secret@api.example.com"), ErrInvalidReference, "must be https://"},
		"a bad one":    {at("https://a:secret@api\x7f"), ErrInvalidReference, "cannot be parsed"},
		"a query":      {at("https://api.example.com?a=b"), ErrInvalidReference, "must be https://"},
		"a fragment":   {at("https://api.example.com#a"), ErrInvalidReference, "must be https://"},
		"the host":     {at("https://HOST.example.com:443/"), ErrNotAllowed, "issues the tokens"},
		"no CA":        {func(t *Target) { t.CAData = nil }, ErrNotAllowed, "no certificate authority"},
		"no CA in it":  {func(t *Target) { t.CAData = []byte("x") }, ErrInvalidReference, "holds no certificate"},
		"no name":      {func(t *Target) { t.Username = nil }, ErrNotAllowed, "says no name"},
		"another name": {func(t *Target) { t.Username = usernameOf }, ErrNotAllowed, "begins with system:"},
		"an empty name": {func(t *Target) {
			t.Username = func(types.NamespacedName) string { return "" }
		}, ErrNotAllowed, "says no name"},
		"a long audience":     {named(strings.Repeat("a", 2000)), ErrNotAllowed, "1024 bytes"},
		"another's audience":  {named(derived), ErrNotAllowed, "derived from other authorities"},
		"an unowned audience": {named("unowned"), ErrNotAllowed, "belongs to no API server"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			target := Target{Server: "https://api.example.com", CAData: ca, Username: prefixed}
			tc.change(&target)
			all := &targets{
				of:   func(client.Object) (Target, error) { return target, nil },
				host: &rest.Config{Host: "https://host.example.com"},
				allow: func(context.Context, client.Object, types.NamespacedName, Target) error {
					return nil
				},
			}
			found, err := all.named(&corev1.ConfigMap{}, account)
			if err == nil {
				err = all.allowed(t.Context(), &corev1.ConfigMap{}, account, found)
			}
			g.Expect(err).To(MatchError(tc.is))
			g.Expect(err).To(MatchError(ContainSubstring(tc.says)))
			g.Expect(err.Error()).NotTo(ContainSubstring("secret"))
		})
	}
}

// What an audience of the operator's own belongs to is compared as a whole.
func TestAudienceOwner(t *testing.T) {
	ca, next, other := authority(t), authority(t), authority(t)
	both := append(append([]byte(nil), ca...), next...)
	const server = "https://api.example.com"
	target := Target{Server: server, CAData: ca, Username: prefixed, Audience: "a"}
	owned := func(server, name string, authorities ...[]byte) AudienceOwner {
		return AudienceOwner{Server: server, ServerName: name, CAs: authorities}
	}
	of := func(authorities []byte) func(*Target) { return func(t *Target) { t.CAData = authorities } }
	const otherServer, otherAuthority = "belongs to another API server", "with another certificate authority"
	for name, tc := range map[string]struct {
		change func(*Target)
		owner  AudienceOwner
		err    error
		says   string // empty: allowed
	}{
		"it":                 {nil, owned("https://API.example.com:443/", "", ca), nil, ""},
		"named":              {nil, owned(server, "api.example.com", ca), nil, ""},
		"while rotated":      {of(both), owned(server, "", ca, both, next), nil, ""},
		"an unlisted bundle": {of(both), owned(server, "", ca, next), nil, otherAuthority},
		"another authority":  {of(other), owned(server, "", ca, next), nil, otherAuthority},
		"no authority":       {nil, owned(server, ""), nil, otherAuthority},
		"empty authorities":  {nil, owned(server, "", nil, []byte{}), nil, otherAuthority},
		"another port":       {nil, owned(server+":6443", "", ca), nil, otherServer},
		"another path":       {nil, owned(server+"/b", "", ca), nil, otherServer},
		"another name":       {func(t *Target) { t.ServerName = "b" }, owned(server, "", ca), nil, otherServer},
		"an error":           {nil, AudienceOwner{}, errors.New("not in the table"), "not in the table"},
		"an empty one":       {nil, AudienceOwner{}, nil, "the owner of the audience"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			named := target
			if tc.change != nil {
				tc.change(&named)
			}
			var asked string
			all := &targets{
				of:    func(client.Object) (Target, error) { return named, nil },
				host:  &rest.Config{Host: "https://host.example.com"},
				allow: func(context.Context, client.Object, types.NamespacedName, Target) error { return nil },
				owner: func(audience string) (AudienceOwner, error) { asked = audience; return tc.owner, tc.err },
			}
			found, err := all.named(&corev1.ConfigMap{}, types.NamespacedName{Namespace: "team", Name: "red"})
			g.Expect(err).NotTo(HaveOccurred())
			err = all.allowed(t.Context(), &corev1.ConfigMap{}, types.NamespacedName{}, found)
			g.Expect(asked).To(Equal("a"))
			if tc.says == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ErrNotAllowed))
			g.Expect(err).To(MatchError(ContainSubstring(tc.says)))
		})
	}
}

func TestTargetOptions(t *testing.T) {
	g := NewWithT(t)
	target := func(client.Object) (Target, error) { return Target{}, nil }
	allow := func(context.Context, client.Object, types.NamespacedName, Target) error { return nil }
	owner := func(string) (AudienceOwner, error) { return AudienceOwner{}, nil }
	for says, options := range map[string]ServiceAccountOptions{
		"set AllowTarget":                   {Target: target},
		"would never be called":             {AllowTarget: allow},
		"AudienceOwner would never":         {AudienceOwner: owner},
		"Audiences must be empty":           {Target: target, AllowTarget: allow, Audiences: []string{"a"}},
		"less than the TokenRequest API's ": {Target: target, AllowTarget: allow, Lifetime: time.Minute},
	} {
		_, err := ServiceAccountTokens(options).Bind(host{config: &rest.Config{}}, identity.Kind{}, nil, nil)
		g.Expect(err).To(MatchError(ContainSubstring(says)))
	}
}
