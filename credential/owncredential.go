package credential

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ownCredential recognizes the host operator's own credential: its token or client key, including
// all that its files have contained since the start.
type ownCredential struct {
	config *rest.Config

	mu      sync.Mutex
	read    time.Time       // guarded by mu; when the files were last read
	digests map[string]bool // guarded by mu; digests of tokens and of public keys
}

// ownFilesEvery is the shortest interval between two reads of the host operator's files.
const ownFilesEvery = 10 * time.Second

// matches reports whether the config has the host operator's own token or client key, in any form.
func (o *ownCredential) matches(c *rest.Config) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.digests == nil {
		o.digests = map[string]bool{}
		o.addLocked(o.config.BearerToken, o.config.CertData)
	}
	if now := time.Now(); now.Sub(o.read) >= ownFilesEvery {
		o.read = now
		token, _ := os.ReadFile(cmp.Or(o.config.BearerTokenFile, os.DevNull)) // a file that cannot be read is not in use
		certificate, _ := os.ReadFile(cmp.Or(o.config.CertFile, os.DevNull))
		o.addLocked(string(token), certificate)
	}
	return c.BearerToken != "" && o.digests[tokenDigest(c.BearerToken)] || len(c.CertData) > 0 &&
		o.digests[publicKeyDigest(c.CertData)]
}

func (o *ownCredential) addLocked(token string, certPEM []byte) {
	if strings.TrimSpace(token) != "" {
		o.digests[tokenDigest(token)] = true
	}
	if key := publicKeyDigest(certPEM); key != "" {
		o.digests[key] = true
	}
}

func tokenDigest(token string) string {
	return digest([]byte("token"), []byte(strings.TrimSpace(token)))
}

// publicKeyDigest returns a digest of the first certificate's public key, "" if there is no
// certificate.
func publicKeyDigest(certPEM []byte) string {
	for block, rest := pem.Decode(certPEM); block != nil; block, rest = pem.Decode(rest) {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			return digest([]byte("key"), certificate.RawSubjectPublicKeyInfo)
		}
	}
	return ""
}
