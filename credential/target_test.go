package credential

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	const server = "https://api.example.com"
	audience := func(target Target) string {
		found, err := TargetAudience(target)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(MatchRegexp("^latchkey:[0-9a-f]{64}$"))
		return found
	}
	own := audience(Target{Server: server, CAData: first})
	for name, same := range map[string]Target{
		"as another text":   {Server: "https://API.example.com:0443/", CAData: first},
		"named":             {Server: server, ServerName: "API.example.com.", CAData: first},
		"a repeated bundle": {Server: server, CAData: append([]byte("a comment\n"), append(first, first...)...)},
	} {
		g.Expect(audience(same)).To(Equal(own), name)
	}
	const begin = "-----BEGIN CERTIFICATE-----\n"
	withHeader := []byte(strings.Replace(string(second), begin, begin+"a: b\n\n", 1))
	g.Expect(audience(Target{Server: server, CAData: append(withHeader, first...)})).To(Equal(own), "TLS skips it, too")
	for name, other := range map[string]Target{
		"another authority": {Server: server, CAData: second},
		"one more":          {Server: server, CAData: both},
		"another server":    {Server: "https://api.example.org", CAData: first},
		"another port":      {Server: server + ":6443", CAData: first},
		"another path":      {Server: server + "/clusters/a", CAData: first},
		"another name":      {Server: server, ServerName: "api.example.org", CAData: first},
	} {
		g.Expect(audience(other)).NotTo(Equal(own), name)
	}
	g.Expect(audience(Target{Server: server, CAData: both})).
		To(Equal(audience(Target{Server: server, CAData: reversed})))
	g.Expect(audience(Target{Server: "https://[2001:DB8::1]:6443", CAData: first})).
		To(Equal(audience(Target{Server: "https://[2001:db8:0::1]:6443", CAData: first})))
	_, err := TargetAudience(Target{Server: server, CAData: []byte("nothing")})
	g.Expect(err).To(MatchError(ContainSubstring("holds no certificate")))
	_, err = TargetAudience(Target{CAData: first})
	g.Expect(err).To(MatchError(ContainSubstring("cannot be parsed")))
}

// Each target that could harm is refused, and the message says why.
func TestRefusedTargets(t *testing.T) {
	ca, other, hostCA := authority(t), authority(t), authority(t)
	derived, err := TargetAudience(Target{Server: "https://api.example.com", CAData: other})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	account := types.NamespacedName{Namespace: "team", Name: "red"}
	at := func(server string) func(*Target) { return func(t *Target) { t.Server = server } }
	named := func(audience string) func(*Target) { return func(t *Target) { t.Audience = audience } }
	for name, tc := range map[string]struct {
		change func(*Target)
		is     error
		says   string
	}{
		"http":        {at("http://api.example.com"), ErrInvalidReference, "over https:// only"},
		"no scheme":   {at("api.example.com"), ErrInvalidReference, "cannot be parsed"},
		"a password":  {at("https://a:secret@api.example.com"), ErrInvalidReference, "must be https://"},
		"a bad one":   {at("https://a:secret@api\x7f"), ErrInvalidReference, "cannot be parsed"},
		"a query":     {at("https://api.example.com?a=b"), ErrInvalidReference, "must be https://"},
		"a fragment":  {at("https://api.example.com#a"), ErrInvalidReference, "must be https://"},
		"the host":    {at("https://HOST.example.com:443/"), ErrNotAllowed, "issues the tokens"},
		"a zero more": {at("https://host.example.com:0443"), ErrNotAllowed, "issues the tokens"},
		"by its name": {func(t *Target) {
			t.Server, t.ServerName, t.CAData = "https://192.0.2.1", "host.example.com", hostCA
		}, ErrNotAllowed, "issues the tokens"},
		"dots":           {at("https://host.example.com/x/.."), ErrInvalidReference, "must be https://"},
		"slashes":        {at("https://api.example.com//x"), ErrInvalidReference, "must be https://"},
		"a port":         {at("https://api.example.com:70000"), ErrInvalidReference, "must be https://"},
		"another letter": {at("https://\u212aube.example.com"), ErrInvalidReference, "cannot be parsed"},
		"a zone":         {at("https://[fe80::1%25eth0]"), ErrInvalidReference, "cannot be parsed"},
		"a long one":     {at("https://api.example.com/" + strings.Repeat("a", 3000)), ErrInvalidReference, "2048 bytes"},
		"a bad name":     {func(t *Target) { t.ServerName = "\u212aube" }, ErrInvalidReference, "no name of a host"},
		"a long bundle": {func(t *Target) {
			t.CAData = append(make([]byte, 200<<10), t.CAData...)
		}, ErrInvalidReference, "131072 bytes"},
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
				host: &rest.Config{Host: "https://host.example.com", TLSClientConfig: rest.TLSClientConfig{CAData: hostCA}},
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
			g.Expect(len(err.Error())).To(BeNumerically("<", 500))
		})
	}
}

// AllowTarget decides, also about a target that the operator's table has.
func TestAllowTarget(t *testing.T) {
	g := NewWithT(t)
	account := types.NamespacedName{Namespace: "team", Name: "red"}
	target := Target{Server: "https://api.example.com", CAData: authority(t), Username: prefixed}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "it"}}
	for _, audience := range []string{"", "a"} {
		named := target
		named.Audience = audience
		var asked []Target
		all := &targets{
			of:   func(client.Object) (Target, error) { return named, nil },
			host: &rest.Config{Host: "https://host.example.com"},
			allow: func(_ context.Context, of client.Object, by types.NamespacedName, at Target) error {
				g.Expect(of).To(BeIdenticalTo(object))
				g.Expect(by).To(Equal(account))
				asked = append(asked, at)
				return errors.New("not there")
			},
			owner: func(string) (AudienceOwner, error) {
				return AudienceOwner{Server: target.Server, CAs: [][]byte{target.CAData}}, nil
			},
		}
		found, err := all.named(object, account)
		g.Expect(err).NotTo(HaveOccurred())
		err = all.allowed(t.Context(), object, account, found)
		g.Expect(err).To(MatchError(ErrNotAllowed))
		g.Expect(err).To(MatchError(ContainSubstring("not there")))
		derived, err := TargetAudience(target)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(asked).To(HaveLen(1))
		g.Expect(asked[0].Audience).To(Equal(cmp.Or(audience, derived)))
		all.of = func(client.Object) (Target, error) { return named, errors.New("no idea") }
		_, err = all.named(object, account)
		g.Expect(err).To(MatchError(ErrInvalidReference))
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
