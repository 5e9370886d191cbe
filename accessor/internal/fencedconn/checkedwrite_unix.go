//go:build unix

package fencedconn

import (
	"net"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// writeChecked writes p, and calls check before each system call: a write may wait long for room,
// and much can have changed then.
func writeChecked(conn *net.TCPConn, p []byte, check func() error) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, errors.WithStack(err)
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		for n < len(p) {
			if failed = check(); failed != nil {
				return true
			}
			written, err := unix.Write(int(fd), p[n:])
			switch {
			case err == nil:
				n += written
			case errors.Is(err, unix.EAGAIN):
				return false // until there is room
			case !errors.Is(err, unix.EINTR):
				failed = errors.Wrap(err, "write")
				return true
			}
		}
		return true
	})
	if failed != nil {
		return n, failed
	}
	return n, errors.WithStack(err)
}
