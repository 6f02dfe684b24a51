package supervisor

import "golang.org/x/sys/unix"

const seccompArch = unix.AUDIT_ARCH_AARCH64

// denialsOfArch are the calls that only this architecture has.
var denialsOfArch []denial
