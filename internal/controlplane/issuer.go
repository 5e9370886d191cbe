package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/client-go/util/keyutil"
)

// noAuthenticators is an authentication configuration that trusts no issuer.
const noAuthenticators = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: []\n"

func (c *ControlPlane) authenticationConfig() string {
	return filepath.Join(c.dir, "authentication.yaml")
}

// SetAuthenticationConfig replaces the AuthenticationConfiguration of the API server, which reads
// it again within seconds. An empty one trusts no issuer. The control plane must have been started
// with Options.AuthenticationConfig.
func (c *ControlPlane) SetAuthenticationConfig(content string) error {
	if content == "" {
		content = noAuthenticators
	}
	next := c.authenticationConfig() + ".next"
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		return errors.WithStack(err)
	}
	return errors.WithStack(os.Rename(next, c.authenticationConfig()))
}

// Issuer returns the issuer of ServiceAccounts' tokens, at which the API server also serves its
// discovery document.
func (c *ControlPlane) Issuer() string {
	return strings.TrimRight(c.env.Config.Host, "/") + "/"
}

// The files with the keys for ServiceAccounts' tokens. envtest uses the name of a certificate for
// the public keys.
const signingKeyFile, verifyingKeysFile = "sa-signer.key", "sa-signer.crt"

// SigningKey returns the key with which the API server signs tokens.
func (c *ControlPlane) SigningKey() (*ecdsa.PrivateKey, error) {
	key, err := keyutil.PrivateKeyFromFile(c.keyFile(signingKeyFile))
	if err != nil {
		return nil, errors.Wrap(err, "reading the signing key")
	}
	signing, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.Errorf("the signing key is a %T", key)
	}
	return signing, nil
}

func (c *ControlPlane) keyFile(name string) string {
	return filepath.Join(c.env.ControlPlane.APIServer.CertDir, name)
}

// RotateServiceAccountKey replaces the key with which the API server signs and verifies tokens. The
// next start of the API server uses the new key, and rejects all tokens that it issued before.
func (c *ControlPlane) RotateServiceAccountKey() error {
	key, err := newSigningKey()
	if err != nil {
		return err
	}
	if err := c.UseServiceAccountKey(key); err != nil {
		return err
	}
	return c.verifyWith(key)
}

// PublishServiceAccountKey adds a key to those with which the API server verifies tokens, from its
// next start on, and returns the key. UseServiceAccountKey then makes the API server sign with it.
func (c *ControlPlane) PublishServiceAccountKey() (*ecdsa.PrivateKey, error) {
	current, err := c.SigningKey()
	if err != nil {
		return nil, err
	}
	next, err := newSigningKey()
	if err != nil {
		return nil, err
	}
	return next, c.verifyWith(current, next)
}

func newSigningKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return key, errors.WithStack(err)
}

// UseServiceAccountKey makes the API server sign tokens with a key from its next start on. With
// which keys it verifies them stays as it is.
func (c *ControlPlane) UseServiceAccountKey(key *ecdsa.PrivateKey) error {
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return errors.WithStack(err)
	}
	return errors.Wrap(os.WriteFile(c.keyFile(signingKeyFile), content, 0o600), "replacing the signing key")
}

func (c *ControlPlane) verifyWith(keys ...*ecdsa.PrivateKey) error {
	var content []byte
	for _, key := range keys {
		public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
		if err != nil {
			return errors.WithStack(err)
		}
		content = append(content, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})...)
	}
	return errors.Wrap(os.WriteFile(c.keyFile(verifyingKeysFile), content, 0o600), "replacing the public keys")
}
