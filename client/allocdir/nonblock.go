package allocdir

import "golang.org/x/sys/unix"

// nonblock keeps an open from blocking if the file has been replaced by a pipe; it has no effect on files.
const nonblock = unix.O_NONBLOCK
