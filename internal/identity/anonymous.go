package identity

import (
	"net"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
)

// Anonymous returns a config with only those fields of config that identify the API server. The
// result has no field that identifies or limits a user: no client certificate, token, token file,
// basic auth, exec or auth provider, impersonation, transport, wrapper, dialer, proxy function or
// rate limiter.
//
// Anonymous reads CAFile, so the result depends on no file. Host becomes a complete URL, so the
// result does not depend on the fields that are left out.
//
// Anonymous returns an error for a server without TLS, unless the server is on loopback: no one on
// the network path may see a token. An address with a user or password, and a CAFile that is empty
// or cannot be read, are errors too.
func Anonymous(config *rest.Config) (*rest.Config, error) {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		// the cause quotes the address, which may hold a password
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
