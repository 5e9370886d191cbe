package clustersv1alpha1

import (
	"strconv"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
)

// Keys of an access Secret. Only SecretKeyKubeconfig is always there.
const (
	SecretKeyKubeconfig          = "kubeconfig"          // with the credential
	SecretKeyExpirationTimestamp = "expirationTimestamp" // of the credential; see Timestamp
	SecretKeyCreationTimestamp   = "creationTimestamp"   // of the credential; see Timestamp
	SecretKeyHost                = "host"                // the URL of the API server
	SecretKeyCA                  = "ca.crt"              // the certificate authority of the API server
	SecretKeyToken               = "token"               // the token alone
	SecretKeyClientID            = "clientID"            // at an OpenID Connect provider
)

// Timestamp returns the time under a key of an access Secret: decimal seconds since 1970, or a time
// as in RFC 3339. The result is zero if the Secret does not have the key.
func Timestamp(secret *corev1.Secret, key string) (time.Time, error) {
	data, ok := secret.Data[key]
	if !ok {
		return time.Time{}, nil
	}
	if seconds, err := strconv.ParseInt(string(data), 10, 64); err == nil {
		return time.Unix(seconds, 0).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, string(data))
	if err != nil { // whose text would quote the data, which may be anything
		return time.Time{}, errors.Errorf("key %s of secret %s/%s holds neither decimal seconds nor a time as in RFC 3339",
			key, secret.Namespace, secret.Name)
	}
	return at, nil
}
