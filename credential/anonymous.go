package credential

import (
	"net"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
)

// Anonymous copies what names a server from config and nothing that names a user or limits one: no
// client certificate, token, token file, basic auth, exec or auth provider, impersonation,
// transport, wrapper, dialer, proxy function or rate limiter. CAFile is read, so that the result
// depends on no file, and Host becomes a whole URL, so that it does not depend on what was left
// out. Tokens are not for everybody on the way to see: a server without TLS is refused unless it is
// on loopback.
func Anonymous(config *rest.Config) (*rest.Config, error) {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		// the cause quotes it, and it may hold a password
		return nil, errors.New("the API server's address cannot be parsed")
	}
	switch {
	case server.User != nil:
		return nil, errors.Errorf("the address of API server %s holds a user or password", server.Host)
	case server.Scheme != "https" && !isLoopback(server.Hostname()):
		return nil,
			errors.Errorf("API server %s is not reached over https, and tokens are not sent in clear text", server.Host)
	}
	anonymous := &rest.Config{
		Host:    server.String(),
		APIPath: config.APIPath,
		TLSClientConfig: rest.TLSClientConfig{
			Insecure:   config.Insecure,
			ServerName: config.ServerName,
			CAData:     append([]byte(nil), config.CAData...),
			CAFile:     config.CAFile,
		},
	}
	if err := rest.LoadTLSFiles(anonymous); err != nil {
		return nil, errors.Wrap(err, "reading the certificate authority of "+server.Host)
	}
	if anonymous.CAFile != "" && len(anonymous.CAData) == 0 {
		return nil, errors.Errorf("the certificate authority file of %s is empty", server.Host)
	}
	anonymous.CAFile = ""
	return anonymous, nil
}

func isLoopback(host string) bool {
	address := net.ParseIP(host)
	return host == "localhost" || address != nil && address.IsLoopback()
}
