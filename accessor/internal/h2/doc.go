// Package h2 has the [Transport] of an API server: HTTP/2 with few connections, requests that are
// sent again if the server did not process them, and HTTP/1.1 where HTTP/2 is not to be had. It
// knows nothing of identities, and of Kubernetes only the defaults of client-go. Record 016 says
// why net/http's own transport is not enough.
package h2
