package edge

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel for the user at the other end, or returns nil.
func peerOf(c *net.UnixConn) (peer *Peer) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			peer = &Peer{UID: cred.Uid, GID: cred.Gid}
		}
	})
	return peer
}

// descriptorMax returns how many descriptors this process may open.
func descriptorMax() uint64 {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) != nil {
		return 2 * TotalDefault
	}
	return lim.Cur
}
