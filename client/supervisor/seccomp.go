package supervisor

import (
	"encoding/binary"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// The system calls that an isolated task may not make, as a program for the kernel's seccomp filter.
//
// It is a list of what is denied, not of what is allowed, with a ceiling: calls that are newer than seccompNewest do not
// exist for a task, so nothing that nobody has looked at is let in. Everything else that ordinary programs, MPI, NCCL,
// debuggers and NUMA libraries use is left alone. Denied is what changes the machine and not the process, what makes
// namespaces (mount and user namespaces are where most escapes begin), and what is rarely used and often at fault.
// Most of it needs a capability anyway; a task that was given that capability may make the call.
//
// A denied call fails with EPERM. Those that programs fall back from fail with ENOSYS: clone3, whose flags a filter
// cannot see, and io_uring.

const (
	// seccompNewest is the newest system call that has been looked at (Linux 6.16). From 424 on all architectures have
	// the same numbers.
	seccompNewest = unix.SYS_FILE_SETATTR
	// cloneNamespaces are CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
	cloneNamespaces = 0x7e020000

	tiocLinux = 0x541c
)

// A denial is a call with the capabilities of which any one allows it.
type denial struct {
	nr   uint32
	errn unix.Errno
	caps uint64
}

const capSysAdmin = 1 << unix.CAP_SYS_ADMIN

// denials are those of all architectures; seccomp_<arch>.go has more.
var denials = []denial{
	// The tree of mounts.
	{unix.SYS_MOUNT, unix.EPERM, capSysAdmin}, {unix.SYS_UMOUNT2, unix.EPERM, capSysAdmin}, {unix.SYS_PIVOT_ROOT, unix.EPERM, capSysAdmin},
	{unix.SYS_FSOPEN, unix.EPERM, capSysAdmin}, {unix.SYS_FSCONFIG, unix.EPERM, capSysAdmin}, {unix.SYS_FSMOUNT, unix.EPERM, capSysAdmin},
	{unix.SYS_FSPICK, unix.EPERM, capSysAdmin}, {unix.SYS_MOVE_MOUNT, unix.EPERM, capSysAdmin}, {unix.SYS_OPEN_TREE, unix.EPERM, capSysAdmin},
	{unix.SYS_OPEN_TREE_ATTR, unix.EPERM, capSysAdmin}, {unix.SYS_MOUNT_SETATTR, unix.EPERM, capSysAdmin},
	// Namespaces.
	{unix.SYS_SETNS, unix.EPERM, capSysAdmin}, {unix.SYS_UNSHARE, unix.EPERM, capSysAdmin}, {unix.SYS_CLONE3, unix.ENOSYS, capSysAdmin},
	// The kernel itself.
	{unix.SYS_INIT_MODULE, unix.EPERM, 1 << unix.CAP_SYS_MODULE}, {unix.SYS_FINIT_MODULE, unix.EPERM, 1 << unix.CAP_SYS_MODULE},
	{unix.SYS_DELETE_MODULE, unix.EPERM, 1 << unix.CAP_SYS_MODULE}, {unix.SYS_KEXEC_LOAD, unix.EPERM, 1 << unix.CAP_SYS_BOOT},
	{unix.SYS_KEXEC_FILE_LOAD, unix.EPERM, 1 << unix.CAP_SYS_BOOT}, {unix.SYS_REBOOT, unix.EPERM, 1 << unix.CAP_SYS_BOOT},
	{unix.SYS_BPF, unix.EPERM, capSysAdmin | 1<<unix.CAP_BPF}, {unix.SYS_PERF_EVENT_OPEN, unix.EPERM, capSysAdmin | 1<<unix.CAP_PERFMON},
	{unix.SYS_SYSLOG, unix.EPERM, 1 << unix.CAP_SYSLOG}, {unix.SYS_USERFAULTFD, unix.EPERM, 1 << unix.CAP_SYS_PTRACE},
	{unix.SYS_IO_URING_SETUP, unix.ENOSYS, capSysAdmin}, {unix.SYS_IO_URING_ENTER, unix.ENOSYS, capSysAdmin}, {unix.SYS_IO_URING_REGISTER, unix.ENOSYS, capSysAdmin},
	// The machine's settings, disks and clock.
	{unix.SYS_SWAPON, unix.EPERM, capSysAdmin}, {unix.SYS_SWAPOFF, unix.EPERM, capSysAdmin}, {unix.SYS_ACCT, unix.EPERM, 1 << unix.CAP_SYS_PACCT},
	{unix.SYS_QUOTACTL, unix.EPERM, capSysAdmin}, {unix.SYS_QUOTACTL_FD, unix.EPERM, capSysAdmin}, {unix.SYS_NFSSERVCTL, unix.EPERM, capSysAdmin},
	{unix.SYS_LOOKUP_DCOOKIE, unix.EPERM, capSysAdmin}, {unix.SYS_VHANGUP, unix.EPERM, 1 << unix.CAP_SYS_TTY_CONFIG},
	{unix.SYS_SETTIMEOFDAY, unix.EPERM, 1 << unix.CAP_SYS_TIME}, {unix.SYS_CLOCK_SETTIME, unix.EPERM, 1 << unix.CAP_SYS_TIME},
	// Keys belong to a user, not to a task: two tasks of one user would share them.
	{unix.SYS_KEYCTL, unix.EPERM, capSysAdmin}, {unix.SYS_ADD_KEY, unix.EPERM, capSysAdmin}, {unix.SYS_REQUEST_KEY, unix.EPERM, capSysAdmin},
	// Files by number instead of by name, past every mount.
	{unix.SYS_OPEN_BY_HANDLE_AT, unix.EPERM, 1 << unix.CAP_DAC_READ_SEARCH}, {unix.SYS_FANOTIFY_INIT, unix.EPERM, capSysAdmin},
	{unix.SYS_KCMP, unix.EPERM, 1 << unix.CAP_SYS_PTRACE},
}

// Offsets in struct seccomp_data.
const (
	dataNr, dataArch = 0, 4
	dataArgs         = 16 // 8 bytes each, the lower half first
)

// filter is a program of struct sock_filter.
type filter struct{ code []byte }

func (f *filter) add(code uint16, jt, jf uint8, k uint32) {
	f.code = binary.LittleEndian.AppendUint16(f.code, code)
	f.code = append(f.code, jt, jf)
	f.code = binary.LittleEndian.AppendUint32(f.code, k)
}

func (f *filter) load(offset uint32) { f.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 0, 0, offset) }
func (f *filter) ret(e unix.Errno) {
	if e == 0 {
		f.add(unix.BPF_RET|unix.BPF_K, 0, 0, unix.SECCOMP_RET_ALLOW)
		return
	}
	f.add(unix.BPF_RET|unix.BPF_K, 0, 0, unix.SECCOMP_RET_ERRNO|uint32(e))
}

// when answers e if the loaded word compares with k as test (BPF_JEQ, BPF_JGT, BPF_JSET) says.
func (f *filter) when(test uint16, k uint32, e unix.Errno) {
	f.add(unix.BPF_JMP|test|unix.BPF_K, 0, 1, k)
	f.ret(e)
}

// argument answers e if the call is nr and its argument i compares with one of ks; the call's number stays loaded
// otherwise.
func (f *filter) argument(nr uint32, i uint32, test uint16, e unix.Errno, ks ...uint32) {
	f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, 0, uint8(2+2*len(ks)), nr)
	f.load(dataArgs + 8*i)
	for _, k := range ks {
		f.when(test, k, e)
	}
	f.ret(0)
}

var filters sync.Map // by capabilities: []byte

// seccompFilter is the program for tasks with these capabilities, or nil on an architecture that has none.
func seccompFilter(caps uint64) []byte {
	if seccompArch == 0 {
		return nil
	}
	if b, ok := filters.Load(caps); ok {
		return b.([]byte)
	}
	f := &filter{}
	f.load(dataArch)
	// Calls of another architecture (32-bit programs) have other numbers, of which nothing is said here.
	f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, 1, 0, seccompArch)
	f.ret(unix.ENOSYS)
	f.load(dataNr)
	f.when(unix.BPF_JGT, seccompNewest, unix.ENOSYS) // on amd64 those of the x32 ABI, too
	for _, d := range slices.Concat(denials, denialsOfArch) {
		if d.caps&caps == 0 {
			f.when(unix.BPF_JEQ, d.nr, d.errn)
		}
	}
	if caps&capSysAdmin == 0 {
		f.argument(unix.SYS_CLONE, 0, unix.BPF_JSET, unix.EPERM, cloneNamespaces)
		f.argument(unix.SYS_IOCTL, 1, unix.BPF_JEQ, unix.EPERM, unix.TIOCSTI, tiocLinux) // put words into a terminal's mouth
	}
	f.argument(unix.SYS_SOCKET, 0, unix.BPF_JEQ, unix.EAFNOSUPPORT, unix.AF_VSOCK) // past every network namespace, to the hypervisor
	f.ret(0)
	filters.Store(caps, f.code)
	return f.code
}
