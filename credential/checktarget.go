package credential

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// TargetFinding is one thing that a connection to a Target needs.
type TargetFinding struct {
	// What it is.
	What string
	// Err is why it is not so, or if Unknown is set, what to look at. Nil means that it is so.
	Err error
	// Unknown is set if it cannot be found out from here.
	Unknown bool
}

// targetCheck is a CheckTarget.
type targetCheck struct {
	findings []TargetFinding
	found    *foreign
	account  types.NamespacedName
	token    string
	claims   tokenClaims
	header   struct {
		KeyID string `json:"kid"`
	}
}

// CheckTarget goes the way of a connection to a Target once, and returns what it found, up to the
// first thing that is not as it must be. If the Target refuses the token, the findings after that
// are what can be the cause. CheckTarget requests one token, with the credential of host, and
// sends it to the Target only. ServiceAccountOptions.AllowTarget and AudienceOwner are not asked.
func CheckTarget(ctx context.Context, host *rest.Config, serviceAccount types.NamespacedName,
	target Target) []TargetFinding {
	c := &targetCheck{account: serviceAccount}
	anonymous, err := identity.Anonymous(host)
	if err == nil {
		c.found, err = (&targets{host: anonymous}).check(target, serviceAccount)
	}
	if !c.add("the target can be one", err) {
		return c.findings
	}
	what := "the API server here issues a token for audience " + strconv.Quote(c.found.Audience) + ", and refuses it"
	if c.token, err = c.request(ctx, host); !c.add(what, err) {
		return c.findings
	}
	if c.claims, err = claimsOf(c.token); err != nil {
		c.add("the token can be read", err)
		return c.findings
	}
	if head, err := base64.RawURLEncoding.DecodeString(strings.SplitN(c.token, ".", 2)[0]); err == nil {
		_ = json.Unmarshal(head, &c.header) // an unknown key is looked for in vain
	}
	c.ask(ctx, anonymous)
	return c.findings
}

// add adds a finding, and reports whether it is as it must be.
func (c *targetCheck) add(what string, err error) bool {
	c.findings = append(c.findings, TargetFinding{What: what, Err: err})
	return err == nil
}

func (c *targetCheck) unknown(what, look string) {
	c.findings = append(c.findings, TargetFinding{What: what, Err: errors.New(look), Unknown: true})
}

// request requests a token as a connection does: no log has it, and it is worthless here.
func (c *targetCheck) request(ctx context.Context, host *rest.Config) (string, error) {
	client, err := rest.HTTPClientFor(host)
	if err != nil {
		return "", err
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	issuer, err := newTokenIssuerAt(host, client, nil, minLifetime)
	if err != nil {
		return "", err
	}
	if issuer.host, err = newHostReview(host); err != nil {
		return "", err
	}
	defer issuer.host.close()
	issued, err := issuer.issue(ctx, tokenID{
		serviceAccount: c.account,
		target:         c.found.server(),
		audience:       c.found.Audience,
	})
	if err != nil {
		return "", err
	}
	return issued.value(), nil
}

// ask asks the target who has the token.
func (c *targetCheck) ask(ctx context.Context, anonymous *rest.Config) {
	client, closeIdle, err := clientFor(c.found.reach)
	if err != nil {
		c.add("the target can be asked", err)
		return
	}
	defer closeIdle()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(c.found.reach.Host, "/")+reviewPath,
		strings.NewReader(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`))
	if err != nil {
		c.add("the target can be asked", err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		err = errors.New(untrusted.Shorten(newSecret(c.token).redact(err.Error())))
	}
	if !c.add("the target answers, with a certificate of its authority", err) {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized {
		c.add("the target accepts the token", errors.New("it answers Unauthorized (401)"))
		c.causes(ctx, anonymous, resp)
		return
	}
	if resp.StatusCode != http.StatusCreated {
		c.add("the target accepts the token", errors.Errorf("it answers with HTTP status %d", resp.StatusCode))
		return
	}
	c.add("the target accepts the token", nil)
	var answer authenticationv1.SelfSubjectReview
	err = json.NewDecoder(io.LimitReader(resp.Body, maxDocument)).Decode(&answer)
	stated := answer.Status.UserInfo
	switch {
	case err != nil:
		err = errors.New("its answer is not that of an API server")
	case stated.Username != c.found.username:
		err = errors.Errorf("it states %s: change claimMappings there, or the expected name here",
			untrusted.Quote(stated.Username))
	case c.found.StatesUID && stated.UID == "":
		err = errors.New("it states no UID: add claimMappings.uid there, or leave StatesUID out here")
	}
	c.add("it states the name "+untrusted.Quote(c.found.username)+", as expected", err)
}

// maxDocument limits what is read of an answer.
const maxDocument = 1 << 20

// causes adds what can be the cause of a 401.
func (c *targetCheck) causes(ctx context.Context, anonymous *rest.Config, refused *http.Response) {
	c.clock(refused)
	c.issuer(ctx, anonymous)
	c.unknown("the target lists the audience",
		"its AuthenticationConfiguration must have "+strconv.Quote(c.found.Audience)+" in issuer.audiences, and "+
			"audienceMatchPolicy MatchAny if it has several")
	c.unknown("the target lists the issuer", "issuer.url there must be "+strconv.Quote(c.claims.issuer)+
		", byte for byte, and certificateAuthority the authority of that address")
	c.unknown("the target reaches the issuer", "it fetches the keys over its own network, each 10 s until it has them")
	c.unknown("the target has the newest keys",
		"after a signing key was replaced it fetches the keys again when they expire, within an hour, or at once when its "+
			"configuration changes")
	c.unknown("the target's rules accept the claims",
		"an expression of claimMappings that fails, or of claimValidationRules and userValidationRules that is false, is a "+
			"401, too")
}

// clock compares the target's clock with the times in the token.
func (c *targetCheck) clock(refused *http.Response) {
	date, err := http.ParseTime(refused.Header.Get("Date"))
	if err != nil {
		c.unknown("the target's clock agrees with the token", "it says no date")
		return
	}
	switch {
	case c.claims.usable.Sub(date) > leeway:
		err = errors.Errorf("there the token is valid only in %s: set the clocks", c.claims.usable.Sub(date))
	case !c.claims.expires.After(date):
		err = errors.Errorf("there the token has expired %s ago: set the clocks", date.Sub(c.claims.expires))
	}
	c.add("the target's clock agrees with the token", err)
}

// issuer reads the documents of the issuer, without a credential, as the target does.
func (c *targetCheck) issuer(ctx context.Context, anonymous *rest.Config) {
	client, closeIdle, err := issuerClient(anonymous)
	if err != nil {
		c.add("the issuer's documents can be read", err)
		return
	}
	defer closeIdle()
	read := func(address string, into any) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusUnauthorized:
			return errors.Errorf("HTTP status %d: bind ClusterRole system:service-account-issuer-discovery to group "+
				"system:unauthenticated, or publish the documents elsewhere", resp.StatusCode)
		case resp.StatusCode != http.StatusOK:
			return errors.Errorf("HTTP status %d", resp.StatusCode)
		}
		return errors.Wrap(json.NewDecoder(io.LimitReader(resp.Body, maxDocument)).Decode(into), "the document")
	}
	var discovery struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	err = read(strings.TrimSuffix(c.claims.issuer, "/")+"/.well-known/openid-configuration", &discovery)
	if err == nil && discovery.Issuer != c.claims.issuer {
		err = errors.Errorf("it says the issuer is %s, and tokens are of %s", untrusted.Quote(discovery.Issuer),
			untrusted.Quote(c.claims.issuer))
	}
	if !c.add("the issuer's discovery document can be read without a credential, from here", err) {
		return
	}
	var keys struct {
		Keys []struct {
			KeyID string `json:"kid"`
		} `json:"keys"`
	}
	if err = read(discovery.Keys, &keys); err == nil {
		err = errors.Errorf("%s has no key %s, with which the token is signed", untrusted.Quote(discovery.Keys),
			untrusted.Quote(c.header.KeyID))
		for _, key := range keys.Keys {
			if key.KeyID == c.header.KeyID {
				err = nil
			}
		}
	}
	c.add("its keys can be read, and have that of the token", err)
}

// clientFor returns a client without a credential.
func clientFor(config *rest.Config) (client *http.Client, closeIdle func(), err error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, nil, err
	}
	client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       issueTimeout,
	}
	return client, func() { utilnet.CloseIdleConnectionsFor(transport) }, nil
}

// issuerClient returns a client that trusts the authority of the API server here, and those of the
// system.
func issuerClient(anonymous *rest.Config) (client *http.Client, closeIdle func(), err error) {
	config, err := rest.TLSConfigFor(anonymous)
	if err != nil {
		return nil, nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if config != nil {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		roots.AppendCertsFromPEM(anonymous.CAData)
		config.RootCAs, config.ServerName, config.NextProtos = roots, "", nil
		transport.TLSClientConfig = config
	}
	client = &http.Client{Transport: transport, Timeout: issueTimeout}
	return client, client.CloseIdleConnections, nil
}
