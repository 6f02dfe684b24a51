package allocdir

import "golang.org/x/sys/unix"

// nonblock keeps an open from waiting should the file have become a pipe meanwhile; it changes nothing for files.
const nonblock = unix.O_NONBLOCK
