package credential

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
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
	// CAData has the certificate authorities of the server, in PEM, 128 KiB at most. They are
	// required: the authorities of the system would let each of them issue a certificate to a server
	// that then gets tokens.
	CAData []byte
	// Audience of the tokens, the only one. Empty means that of TargetAudience. An audience of your
	// own needs ServiceAccountOptions.AudienceOwner.
	Audience string
	// Username returns the name that the server must state for a ServiceAccount of the host
	// operator's cluster, such as "hub:system:serviceaccount:shop:deployer". It is required. A name
	// that begins with "system:" is refused: it would be the name of a user of the server's own
	// cluster.
	Username func(serviceAccount types.NamespacedName) string
	// StatesUID is set if the server states the UID that the ServiceAccount has in the host
	// operator's cluster, by claimMappings.uid with
	// claims['kubernetes.io'].serviceaccount.uid. A connection then requires it.
	StatesUID bool
}

// AudienceOwner is the API server that an audience belongs to.
type AudienceOwner struct {
	// Server and ServerName are those of the Target.
	Server, ServerName string
	// CAs are the bundles of certificate authorities in PEM that CAData of the Target may be. A bundle
	// is compared by its public keys. While an authority is replaced, list the old bundle, the new one
	// and that with both. Without CAs, the audience belongs to no server.
	CAs [][]byte
}

// targetPrefix begins every audience that TargetAudience returns.
const targetPrefix = "latchkey:"

// TargetAudience returns the audience of tokens for a target that has no Audience: by its address,
// the public keys of its CAData, and the name for which it has a certificate. It stays when a
// certificate of an authority is renewed with the same key, and changes with each authority that
// is added or removed; the server then lists both audiences, with audienceMatchPolicy MatchAny.
// Only a server with a certificate by these authorities for that name gets such a token, and only
// an API server that lists the audience accepts it.
func TargetAudience(target Target) (string, error) {
	address, name, err := placeOf(target)
	if err != nil {
		return "", err
	}
	keys, err := publicKeys(target.CAData)
	if err != nil {
		return "", errors.WithMessage(err, "the certificate authority")
	}
	return derivedAudience(address, name, keys), nil
}

// derivedAudience is TargetAudience of a target's parts.
func derivedAudience(address *url.URL, name string, keys [][]byte) string {
	all := sha256.New()
	for _, part := range append([][]byte{[]byte(canonicalAddress(address)), []byte(name)}, keys...) {
		_, _ = all.Write([]byte(strconv.Itoa(len(part)) + "\x00")) // a hash never returns an error
		_, _ = all.Write(part)
	}
	return targetPrefix + hex.EncodeToString(all.Sum(nil))
}

// placeOf returns where a target is, and the name for which it must have a certificate.
func placeOf(target Target) (address *url.URL, name string, err error) {
	if address, err = addressOf(target.Server); err != nil {
		return nil, "", err
	}
	if target.ServerName != "" && !isHost(target.ServerName) {
		return nil, "", errors.Wrapf(ErrInvalidReference, "the server name %s is no name of a host",
			untrusted.Quote(target.ServerName))
	}
	return address, nameAt(address, target.ServerName), nil
}

// maxBundle and maxServer are the limits of what is parsed of a Target.
const maxBundle, maxServer = 128 << 10, 2 << 10

// publicKeys returns the different public keys of a bundle, sorted.
func publicKeys(bundle []byte) (keys [][]byte, err error) {
	if len(bundle) > maxBundle {
		return nil, errors.Errorf("has more than %d bytes", maxBundle)
	}
	if keys, err = authorityKeys(bundle); err != nil {
		return nil, err
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

// isHost reports whether text is an address or a name of a host, in ASCII.
func isHost(text string) bool {
	if net.ParseIP(strings.Trim(text, "[]")) != nil {
		return true
	}
	ascii := !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf })
	return ascii && len(validation.IsDNS1123Subdomain(canonicalName(text))) == 0
}

// canonicalAddress is the same for addresses that lead to the same API server.
func canonicalAddress(address *url.URL) string {
	port, err := strconv.Atoi(cmp.Or(address.Port(), "443"))
	if err != nil {
		return address.String()
	}
	return "https://" + net.JoinHostPort(canonicalName(address.Hostname()), strconv.Itoa(port)) +
		strings.TrimRight(address.Path, "/")
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

	mu    sync.Mutex
	known map[[sha256.Size]byte][][]byte // guarded by mu; public keys of bundles
}

// maxKnown is how many bundles are remembered.
const maxKnown = 1000

// keysOf is publicKeys, which it calls once for each bundle: targets are looked at with every
// reconcile and every call for an object.
func (t *targets) keysOf(bundle []byte) (keys [][]byte, err error) {
	digest := sha256.Sum256(bundle)
	t.mu.Lock()
	keys, found := t.known[digest]
	t.mu.Unlock()
	if found {
		return keys, nil
	}
	if keys, err = publicKeys(bundle); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxKnown {
		t.known = map[[sha256.Size]byte][][]byte{}
	}
	t.known[digest] = keys
	return keys, nil
}

// foreign is a target that has been checked.
type foreign struct {
	Target
	reach    *rest.Config
	address  *url.URL
	name     string // for which the server must have a certificate
	keys     [][]byte
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
func (f *foreign) owner() string { return canonicalAddress(f.address) + " as " + f.name }

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
	address, name, err := placeOf(target)
	if err != nil {
		return nil, err
	}
	refused := func(why string) error {
		return errors.Wrapf(ErrNotAllowed, "acting as serviceaccount %s at %s: %s", account, untrusted.Quote(address.Host),
			why)
	}
	if len(target.CAData) == 0 {
		return nil, refused("the API server has no certificate authority, so others could get a certificate for it")
	}
	keys, err := t.keysOf(target.CAData)
	if err != nil {
		return nil, errors.Wrapf(&classifiedError{kind: ErrInvalidReference, cause: err},
			"the certificate authority of the API server %s", untrusted.Quote(address.Host))
	}
	target.ServerName = canonicalName(target.ServerName)
	derived := derivedAudience(address, name, keys)
	f := &foreign{
		Target:  target,
		address: address,
		name:    name,
		keys:    keys,
		owned:   target.Audience != "" && target.Audience != derived,
	}
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
	switch {
	case t.isHost(f):
		return nil, refused("it is the API server that issues the tokens, which is no remote one")
	case f.username == "":
		return nil, refused("the host operator says no name that the API server must state")
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

// isHost reports whether the target certainly is the API server that issues the tokens: by its
// address, or by its name and authorities.
func (t *targets) isHost(f *foreign) bool {
	address, err := addressOf(t.host.Host)
	if err != nil {
		return false
	}
	if canonicalAddress(address) == canonicalAddress(f.address) {
		return true
	}
	keys, err := t.keysOf(t.host.CAData)
	return err == nil && slices.EqualFunc(keys, f.keys, bytes.Equal) && nameAt(address, t.host.ServerName) == f.name &&
		strings.TrimRight(address.Path, "/") == strings.TrimRight(f.address.Path, "/")
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
		account, untrusted.Quote(f.address.Host))
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
	if canonicalAddress(address) != canonicalAddress(f.address) || nameAt(address, owner.ServerName) != f.name {
		return errors.Errorf("the audience %s belongs to another API server", untrusted.Quote(f.Audience))
	}
	for _, bundle := range owner.CAs {
		if of, err := t.keysOf(bundle); err == nil && slices.EqualFunc(of, f.keys, bytes.Equal) {
			return nil
		}
	}
	return errors.Errorf("the audience %s belongs to that API server with another certificate authority",
		untrusted.Quote(f.Audience))
}

// addressOf parses the address of an API server.
func addressOf(server string) (*url.URL, error) {
	if len(server) > maxServer {
		return nil, errors.Wrapf(ErrInvalidReference, "the API server's address has more than %d bytes", maxServer)
	}
	address, err := url.Parse(server)
	if err != nil || !isHost(address.Hostname()) {
		return nil, errors.Wrapf(ErrInvalidReference, "the API server's address %s cannot be parsed",
			untrusted.Quote(withoutUserinfo(server)))
	}
	host := untrusted.Quote(address.Host)
	port, portErr := strconv.Atoi(cmp.Or(address.Port(), "443"))
	switch {
	case address.User != nil, address.RawQuery != "", address.ForceQuery, address.Fragment != "", portErr != nil,
		port < 1, port > 65535, !isPlain(address.Path):
		return nil, errors.Wrapf(ErrInvalidReference,
			"the API server's address at %s must be https:// with a host, and maybe a port and a path", host)
	case address.Scheme != "https":
		return nil, errors.Wrapf(ErrInvalidReference,
			"the API server's address at %s begins with %s, and tokens are sent over https:// only", host,
			untrusted.Quote(address.Scheme))
	}
	return address, nil
}

// isPlain reports whether a path of an address leads where it seems to.
func isPlain(of string) bool {
	return of == "" || of == "/" || path.Clean(of) == strings.TrimSuffix(of, "/")
}

// withoutUserinfo returns text without what may be a password in an address.
func withoutUserinfo(text string) string {
	if at := strings.LastIndex(text, "@"); at >= 0 {
		return "[redacted]" + text[at:]
	}
	return text
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
