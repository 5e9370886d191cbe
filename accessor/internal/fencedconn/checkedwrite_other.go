//go:build !unix

package fencedconn

import "net"

// writeChecked writes p, and calls check once before.
func writeChecked(conn *net.TCPConn, p []byte, check func() error) (int, error) {
	if err := check(); err != nil {
		return 0, err
	}
	return conn.Write(p)
}
