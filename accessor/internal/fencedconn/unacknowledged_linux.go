package fencedconn

import (
	"net"

	"golang.org/x/sys/unix"
)

// unacknowledged returns how many bytes the kernel has taken for the connection that the other side
// has not acknowledged. 0 if the connection is closed.
func unacknowledged(conn *net.TCPConn) int64 {
	if conn == nil {
		return 0
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	bytes := 0
	if raw.Control(func(fd uintptr) { bytes, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) != nil || err != nil {
		return 0
	}
	return int64(bytes)
}
