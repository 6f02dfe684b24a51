package supervisor

import "golang.org/x/sys/unix"

const seccompArch = unix.AUDIT_ARCH_X86_64

// denialsOfArch are the calls that only this architecture has.
var denialsOfArch = []denial{
	{unix.SYS_IOPL, unix.EPERM, 1 << unix.CAP_SYS_RAWIO}, {unix.SYS_IOPERM, unix.EPERM, 1 << unix.CAP_SYS_RAWIO},
	{unix.SYS_USELIB, unix.EPERM, 0}, {unix.SYS_SYSFS, unix.EPERM, 0}, {unix.SYS__SYSCTL, unix.EPERM, 0}, {unix.SYS_CREATE_MODULE, unix.EPERM, 0},
	{unix.SYS_GET_KERNEL_SYMS, unix.EPERM, 0}, {unix.SYS_QUERY_MODULE, unix.EPERM, 0}, {unix.SYS_MODIFY_LDT, unix.EPERM, 0},
}
