package credential

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Target is a remote API server that trusts the issuer of the ServiceAccounts of the host
// operator's cluster. docs/guide-remote.md has the way there.
type Target struct {
	// Server is the address, with https.
	Server string
	// ServerName is the name for which the server has a certificate. Defaults to the host of Server.
	ServerName string
	// CAData has the certificate authorities of the server, in PEM. They are required: the
	// authorities of the system would let each of them issue a certificate to a server that then gets
	// tokens.
	CAData []byte
	// Audience of the tokens, the only one. Empty means that of TargetAudience, which no other API
	// server accepts. An audience of your own needs ServiceAccountOptions.AudienceOwner.
	Audience string
	// Username returns the name by which the server knows a ServiceAccount of the host operator's
	// cluster. The server must state that name. A name that begins with "system:" is refused: it
	// would be the name of a user of the server's own cluster.
	Username func(serviceAccount types.NamespacedName) string
	// StatesUID is set if the server states the UID that the ServiceAccount has in the host
	// operator's cluster. A connection then requires it.
	StatesUID bool
}

// AudienceOwner is the API server that an audience belongs to.
type AudienceOwner struct {
	// Server and ServerName are those of the Target.
	Server, ServerName string
	// CAs are the bundles of certificate authorities in PEM that CAData of the Target may be. A bundle
	// is compared by its public keys. While an authority is replaced, list the old bundle, the new one
	// and that with both.
	CAs [][]byte
}

// targetPrefix begins every audience that TargetAudience returns.
const targetPrefix = "latchkey:"

// TargetAudience returns the audience of tokens for a target that has no Audience: by the public
// keys of its CAData, and the name for which it has a certificate. It stays when a certificate of
// an authority is renewed with the same key. Only a server with a certificate by these authorities
// for that name gets such a token.
func TargetAudience(target Target) (string, error) {
	name := canonicalName(target.ServerName)
	if name == "" {
		address, err := addressOf(target.Server)
		if err != nil {
			return "", err
		}
		name = canonicalName(address.Hostname())
	}
	return derivedAudience(target.CAData, name)
}

// derivedAudience is TargetAudience of authorities and a name.
func derivedAudience(caData []byte, name string) (string, error) {
	keys, err := publicKeys(caData)
	if err != nil {
		return "", errors.WithMessage(err, "the certificate authority")
	}
	all := sha256.New()
	for _, part := range append(keys, []byte(name)) {
		_, _ = all.Write([]byte(strconv.Itoa(len(part)) + "\x00")) // a hash never returns an error
		_, _ = all.Write(part)
	}
	return targetPrefix + hex.EncodeToString(all.Sum(nil)), nil
}

// publicKeys returns the different public keys of a bundle, sorted.
func publicKeys(bundle []byte) (keys [][]byte, err error) {
	if err := checkAuthorities(bundle); err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil { // crypto/x509 also skips the others
			keys = append(keys, certificate.RawSubjectPublicKeyInfo)
		}
	}
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal), nil
}

// canonicalName returns a host as certificates name it.
func canonicalName(host string) string {
	if address := net.ParseIP(strings.Trim(host, "[]")); address != nil {
		return address.String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// nameAt returns the name for which the server at an address must have a certificate.
func nameAt(address *url.URL, serverName string) string {
	return cmp.Or(canonicalName(serverName), canonicalName(address.Hostname()))
}

// maxAudience is the maximum number of bytes of an audience.
const maxAudience = 1 << 10

// targets are the options for tokens that a remote API server accepts.
type targets struct {
	of    func(client.Object) (Target, error)
	allow func(context.Context, client.Object, types.NamespacedName, Target) error
	owner func(audience string) (AudienceOwner, error)
	host  *rest.Config // the API server that issues the tokens
}

// foreign is a target that has been checked.
type foreign struct {
	Target
	reach    *rest.Config
	name     string // for which the server must have a certificate
	username string // that the server must state
	owned    bool   // the audience is one of the operator's own, and not derived
}

// server identifies the API server, which is the same for all that act there.
func (f *foreign) server() string { return digest([]byte(targetKey(f.reach))) }

// key identifies the API server, and whom it must state for a ServiceAccount.
func (f *foreign) key() string {
	return digest([]byte(f.server()), []byte(f.Audience), []byte(f.username), []byte(strconv.FormatBool(f.StatesUID)))
}

// owner names whom an audience belongs to.
func (f *foreign) owner() string { return f.reach.Host + " as " + f.name }

// named returns the target of an object, checked as far as the object and the host operator's
// function determine it.
func (t *targets) named(object client.Object, account types.NamespacedName) (*foreign, error) {
	target, err := t.of(object)
	if err != nil {
		return nil, referenceError(err, "determining the API server")
	}
	return t.check(target, account)
}

// check returns the target for a ServiceAccount, or why it can be none.
func (t *targets) check(target Target, account types.NamespacedName) (*foreign, error) {
	address, err := addressOf(target.Server)
	if err != nil {
		return nil, err
	}
	refused := func(why string) error {
		return errors.Wrapf(ErrNotAllowed, "acting as serviceaccount %s at %s: %s", account, untrusted.Quote(address.Host),
			why)
	}
	if len(target.CAData) == 0 {
		return nil, refused("the API server has no certificate authority (CAData), so others could get a certificate for it")
	}
	target.ServerName = canonicalName(target.ServerName)
	name := nameAt(address, target.ServerName)
	derived, err := derivedAudience(target.CAData, name)
	if err != nil {
		return nil, errors.Wrapf(&classifiedError{kind: ErrInvalidReference, cause: err}, "the API server %s",
			untrusted.Quote(address.Host))
	}
	f := &foreign{Target: target, name: name, owned: target.Audience != "" && target.Audience != derived}
	if f.Audience == "" {
		f.Audience = derived
	}
	if f.reach, err = identity.Anonymous(&rest.Config{
		Host: address.String(),
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: target.ServerName,
			CAData:     target.CAData,
		},
	}); err != nil {
		return nil, errors.Wrap(ErrInvalidReference, err.Error())
	}
	if target.Username != nil {
		f.username = target.Username(account)
	}
	host, hostErr := addressOf(t.host.Host)
	switch {
	case hostErr == nil && sameAddress(host, address):
		return nil, refused("it is the API server that issues the tokens: use ServiceAccountTokens without Target for it")
	case f.username == "":
		return nil, refused("Target.Username says no name that the API server must state")
	case strings.HasPrefix(f.username, "system:"):
		return nil, refused("the expected name " + untrusted.Quote(f.username) + " begins with system:, so it is that of " +
			"a user of the API server's own cluster: let the API server add a prefix to names of this cluster")
	case len(f.Audience) > maxAudience:
		return nil, refused("the audience has more than " + strconv.Itoa(maxAudience) + " bytes")
	case f.owned && strings.HasPrefix(f.Audience, targetPrefix):
		return nil, refused("the audience " + untrusted.Quote(f.Audience) + " is derived from other authorities")
	}
	return f, nil
}

// allowed returns an ErrNotAllowed if the object may not use the target.
func (t *targets) allowed(ctx context.Context, object client.Object, account types.NamespacedName, f *foreign) error {
	refused := t.allow(ctx, object, account, f.Target)
	if refused == nil && f.owned {
		refused = t.checkOwner(f)
	}
	if refused == nil {
		return nil
	}
	return errors.Wrapf(&classifiedError{kind: ErrNotAllowed, cause: refused}, "acting as serviceaccount %s at %s",
		account, f.reach.Host)
}

// checkOwner returns an error unless the audience belongs to the target by the operator's own
// table. What the author of an object writes never gives an audience to a target.
func (t *targets) checkOwner(f *foreign) error {
	if t.owner == nil {
		return errors.Errorf("the audience %s belongs to no API server: set ServiceAccountOptions.AudienceOwner, or leave "+
			"Audience empty", untrusted.Quote(f.Audience))
	}
	owner, err := t.owner(f.Audience)
	if err != nil {
		return errors.WithMessagef(err, "the owner of the audience %s", untrusted.Quote(f.Audience))
	}
	address, err := addressOf(owner.Server)
	if err != nil {
		return errors.WithMessagef(err, "the owner of the audience %s", untrusted.Quote(f.Audience))
	}
	own, err := addressOf(f.Server)
	if err != nil || !sameAddress(own, address) || nameAt(address, owner.ServerName) != f.name {
		return errors.Errorf("the audience %s belongs to another API server", untrusted.Quote(f.Audience))
	}
	keys, err := publicKeys(f.CAData)
	if err != nil {
		return err
	}
	for _, bundle := range owner.CAs {
		if of, err := publicKeys(bundle); err == nil && slices.EqualFunc(of, keys, bytes.Equal) {
			return nil
		}
	}
	return errors.Errorf("the audience %s belongs to that API server with another certificate authority",
		untrusted.Quote(f.Audience))
}

// addressOf parses the address of an API server.
func addressOf(server string) (*url.URL, error) {
	address, err := url.Parse(server)
	switch {
	case err != nil, address.Hostname() == "":
		return nil, errors.Wrapf(ErrInvalidReference, "the API server's address %s cannot be parsed",
			untrusted.Quote(withoutUserinfo(server)))
	case address.User != nil, address.RawQuery != "", address.ForceQuery, address.Fragment != "":
		return nil, errors.Wrapf(ErrInvalidReference,
			"the API server's address at %s must be https:// with a host, and maybe a port and a path", address.Host)
	case address.Scheme != "https":
		return nil, errors.Wrapf(ErrInvalidReference,
			"the API server's address at %s begins with %s, and tokens are sent over https:// only", address.Host,
			untrusted.Quote(address.Scheme))
	}
	return address, nil
}

// withoutUserinfo returns text without what may be a password in an address.
func withoutUserinfo(text string) string {
	if at := strings.LastIndex(text, "@"); at >= 0 {
		return "[redacted]" + text[at:]
	}
	return text
}

// sameAddress reports whether both addresses certainly lead to the same API server.
func sameAddress(a, b *url.URL) bool {
	port := func(of *url.URL) string {
		if of.Port() == "" {
			return "443"
		}
		return of.Port()
	}
	return canonicalName(a.Hostname()) == canonicalName(b.Hostname()) && port(a) == port(b) &&
		strings.TrimRight(a.Path, "/") == strings.TrimRight(b.Path, "/")
}

// resolve adds to a Resolution what the target determines.
func (f *foreign) resolve(id tokenID, resolved *identity.Resolution) {
	resolved.Key += "\x00at\x00" + f.key()
	resolved.Target = f.reach
	resolved.UntrustedServer = true
	resolved.Sharable = false // siblings take up renewed tokens at different times
	resolved.Expected = connstate.Identity{Username: f.username}
	if f.StatesUID {
		resolved.Expected.UID = id.uid
	}
}
