package supervisor

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// The system calls that an isolated task may not make, as a program for the kernel's seccomp filter.
//
// It lists what is denied, not what is allowed, up to a ceiling: calls newer than seccompNewest do not exist for a
// task, so no unreviewed call is allowed. Everything else that ordinary programs, MPI, NCCL, debuggers and NUMA
// libraries use is allowed. Denied are calls that change the machine and not the process, calls that create namespaces
// (most escapes begin with mount and user namespaces), and calls that are rarely used and often vulnerable. Most of
// them need a capability anyway; a task with that capability may make the call.
//
// A denied call fails with EPERM. Calls for which programs have a fallback fail with ENOSYS: clone3, whose flags a
// filter cannot see, and io_uring.

const (
	// seccompNewest is the newest reviewed system call (Linux 6.16). From 424 on all architectures have the same
	// numbers.
	seccompNewest = unix.SYS_FILE_SETATTR
	// cloneNamespaces are CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
	cloneNamespaces = 0x7e020000

	tiocLinux = 0x541c
)

// A denial is a denied call, with the capabilities of which any one allows it.
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
	// Access to files by handle instead of by path, bypassing mounts.
	{unix.SYS_OPEN_BY_HANDLE_AT, unix.EPERM, 1 << unix.CAP_DAC_READ_SEARCH}, {unix.SYS_FANOTIFY_INIT, unix.EPERM, capSysAdmin},
	{unix.SYS_KCMP, unix.EPERM, 1 << unix.CAP_SYS_PTRACE},
}

// Offsets in struct seccomp_data.
const (
	dataNr, dataArch = 0, 4
	dataArgs         = 16 // 8 bytes each, the lower half first
)

// filter is a program of struct sock_filter under construction. When a task installs it, the kernel runs it for every
// call number, to find the calls that are always allowed. It searches the numbers by bisection, so that each answer
// takes few steps.
type filter struct {
	steps  []step
	labels []int // index of the step after each label, -1 while unknown
}

// label is the target of a jump.
type label int

// step is an instruction; jt and jf are for jumps.
type step struct {
	code   uint16
	jt, jf label
	k      uint32
}

func (f *filter) label() label {
	f.labels = append(f.labels, -1)
	return label(len(f.labels) - 1)
}

func (f *filter) here(l label) { f.labels[l] = len(f.steps) }

func (f *filter) load(offset uint32) {
	f.steps = append(f.steps, step{code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, k: offset})
}

// jump goes to yes if the loaded word compares with k by test (BPF_JEQ, BPF_JGE, BPF_JSET), else to no.
func (f *filter) jump(test uint16, k uint32, yes, no label) {
	f.steps = append(f.steps, step{code: unix.BPF_JMP | test | unix.BPF_K, k: k, jt: yes, jf: no})
}

func (f *filter) ret(value uint32) {
	f.steps = append(f.steps, step{code: unix.BPF_RET | unix.BPF_K, k: value})
}

// span is a range of numbers with the same answer, up to the next span.
type span struct {
	first uint32
	to    label
}

// halve finds the span of the loaded number by bisection.
func (f *filter) halve(list []span) {
	mid := len(list) / 2
	child := func(part []span) (label, bool) {
		if len(part) == 1 {
			return part[0].to, false
		}
		return f.label(), true
	}
	low, more := child(list[:mid])
	high, further := child(list[mid:])
	f.jump(unix.BPF_JGE, list[mid].first, high, low)
	if more {
		f.here(low)
		f.halve(list[:mid])
	}
	if further {
		f.here(high)
		f.halve(list[mid:])
	}
}

// encode returns the program in the kernel's format.
func (f *filter) encode() []byte {
	var out []byte
	for i, s := range f.steps {
		var by [2]byte
		if s.code&7 == unix.BPF_JMP {
			for j, l := range []label{s.jt, s.jf} {
				d := f.labels[l] - i - 1
				if d < 0 || d > 255 {
					panic(fmt.Sprintf("the filter of system calls has a jump over %d steps", d)) // more denials than a jump can pass: see TestFilter
				}
				by[j] = byte(d)
			}
		}
		out = binary.LittleEndian.AppendUint16(out, s.code)
		out = append(out, by[0], by[1])
		out = binary.LittleEndian.AppendUint32(out, s.k)
	}
	return out
}

// argument is a condition on one argument of a call: e is the error if the argument compares with one of ks by test.
type argument struct {
	nr    uint32
	index uint32
	test  uint16
	errn  unix.Errno
	ks    []uint32
}

// arguments returns the calls that are partly denied to tasks with these capabilities.
func arguments(caps uint64) []argument {
	list := []argument{
		{unix.SYS_SOCKET, 0, unix.BPF_JEQ, unix.EAFNOSUPPORT, []uint32{unix.AF_VSOCK}}, // bypasses network namespaces, to the hypervisor
	}
	if caps&capSysAdmin == 0 {
		list = append(list,
			argument{unix.SYS_CLONE, 0, unix.BPF_JSET, unix.EPERM, []uint32{cloneNamespaces}},
			argument{unix.SYS_IOCTL, 1, unix.BPF_JEQ, unix.EPERM, []uint32{unix.TIOCSTI, tiocLinux}}) // inject input into a terminal
	}
	return list
}

var filters sync.Map // by capabilities: []byte

// seccompFilter returns the program for tasks with these capabilities, or nil on an architecture without a filter.
func seccompFilter(caps uint64) []byte {
	if seccompArch == 0 {
		return nil
	}
	if b, ok := filters.Load(caps); ok {
		return b.([]byte)
	}
	b := makeFilter(caps)
	filters.Store(caps, b)
	return b
}

func makeFilter(caps uint64) []byte {
	f := &filter{}
	answers := map[unix.Errno]label{} // 0: allowed
	answer := func(e unix.Errno) label {
		l, ok := answers[e]
		if !ok {
			l = f.label()
			answers[e] = l
		}
		return l
	}
	mine := f.label()
	f.load(dataArch)
	// Calls of another architecture (32-bit programs) have other numbers, which are not listed here.
	f.jump(unix.BPF_JEQ, seccompArch, mine, answer(unix.ENOSYS))
	f.here(mine)
	f.load(dataNr)
	apart := arguments(caps)
	special := map[uint32]label{}
	for _, d := range slices.Concat(denials, denialsOfArch) {
		if d.caps&caps == 0 {
			special[d.nr] = answer(d.errn)
		}
	}
	for _, a := range apart {
		if _, denied := special[a.nr]; !denied {
			special[a.nr] = f.label()
		}
	}
	spans := []span{{0, answer(0)}}
	next := func(first uint32, to label) {
		switch last := &spans[len(spans)-1]; {
		case last.to == to:
		case last.first == first:
			last.to = to
		default:
			spans = append(spans, span{first, to})
		}
	}
	for _, nr := range slices.Sorted(maps.Keys(special)) {
		next(nr, special[nr])
		next(nr+1, answer(0))
	}
	next(seccompNewest+1, answer(unix.ENOSYS)) // on amd64 also those of the x32 ABI
	f.halve(spans)
	for _, a := range apart {
		f.here(special[a.nr])
		f.load(dataArgs + 8*a.index)
		for i, k := range a.ks {
			no := answer(0)
			if i < len(a.ks)-1 {
				no = f.label()
			}
			f.jump(a.test, k, answer(a.errn), no)
			if i < len(a.ks)-1 {
				f.here(no)
			}
		}
	}
	for _, e := range slices.Sorted(maps.Keys(answers)) {
		f.here(answers[e])
		if e == 0 {
			f.ret(unix.SECCOMP_RET_ALLOW)
		} else {
			f.ret(unix.SECCOMP_RET_ERRNO | uint32(e))
		}
	}
	return f.encode()
}
