// Package launch builds the programs that the launcher runs. The launcher is a 2 KiB static executable (src/launch.c,
// committed as launch_<arch>.bin) that runs with each task; a Program is the list of system calls with which it
// prepares itself and the task. All policy is here in Go, without cost for the task: no Go runtime starts in a child,
// and no lock of a forked runtime can be held.
package launch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// File descriptors of the launcher; launch.c must match.
const (
	FDStdoutRead = 3
	FDStderrRead = 4
	FDStatus     = 5
	FDRecord     = 6
	FDProgram    = 7
)

// Flags of a Program.
const (
	// ExitAsChild makes the launcher exit with the child's code (128+n for signal n) and write no record.
	ExitAsChild uint32 = 1
	// NamespaceInit means that the launcher is pid 1 of a pid namespace and ends all processes in it.
	NamespaceInit uint32 = 2
)

// RecordSize is the size of an exit record.
const RecordSize = 64

const (
	programMagic = 0x324c544d55534d4c
	recordMagic  = 0x315445584d55534d
	headerSize   = 40
	opSize       = 56
	// programMax limits a program; the kernel refuses longer argument lists anyway.
	programMax = 8 << 20
	// programBase is the address to which the launcher maps a program; pointers are relocated to it.
	programBase = 0x40000000
)

// Arg is an argument of an operation: a number, a pointer into the program's data, or a register.
type Arg struct {
	value   uint64
	pointer bool
	reg     bool
}

// N is a number.
func N[T ~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64 | ~uintptr](n T) Arg {
	return Arg{value: uint64(n)}
}

// R returns the value of register r (0-7), which an earlier operation of the same section has set.
func R(r int) Arg { return Arg{value: uint64(r), reg: true} }

type op struct {
	nr     uint32
	ignore bool
	dst    int // register or -1
	args   [6]Arg
	label  string
}

// Program is what one launcher does. The zero value is not usable; call New.
type Program struct {
	Flags      uint32
	CloneFlags uint64 // for the child; SIGCHLD is added
	data       bytes.Buffer
	relocs     []uint32 // offsets in data of pointers
	pre, child []op
	encoded    []byte // reused by encode
}

// programs are released ones, for reuse: a program takes 50 KiB.
var programs = sync.Pool{New: func() any {
	p := &Program{pre: make([]op, 0, 16), child: make([]op, 0, 160)}
	p.data.Grow(8 << 10)
	return p
}}

// New makes an empty program.
func New() *Program { return programs.Get().(*Program) }

// empty makes the program what New returns. It keeps nothing of a task's environment, which may hold secrets.
func (p *Program) empty() {
	p.Flags, p.CloneFlags = 0, 0
	clear(p.data.Bytes())
	clear(p.encoded)
	clear(p.pre)
	clear(p.child)
	p.data.Reset()
	p.relocs, p.pre, p.child = p.relocs[:0], p.pre[:0], p.child[:0]
}

// Section is a list of operations: before the fork, or in the child.
type Section struct {
	ops  *[]op
	prog *Program
}

// Pre returns the section that the launcher runs before it forks the task.
func (p *Program) Pre() Section { return Section{&p.pre, p} }

// Child returns the section that runs in the task's process; its last operation must be an Exec.
func (p *Program) Child() Section { return Section{&p.child, p} }

// S adds a NUL-terminated string to the program and returns a pointer to it.
func (p *Program) S(s string) Arg {
	a := Arg{value: uint64(p.data.Len()), pointer: true}
	p.data.WriteString(s)
	p.data.WriteByte(0)
	return a
}

// B adds bytes to the program, aligned to 8, and returns a pointer to them.
func (p *Program) B(b []byte) Arg {
	p.align()
	a := Arg{value: uint64(p.data.Len()), pointer: true}
	p.data.Write(b)
	return a
}

func (p *Program) align() {
	for p.data.Len()%8 != 0 {
		p.data.WriteByte(0)
	}
}

// strings adds a NULL-terminated array of strings to the program.
func (p *Program) strings(list []string) Arg {
	at := make([]uint64, len(list))
	for i, s := range list {
		at[i] = p.S(s).value
	}
	p.align()
	a := Arg{value: uint64(p.data.Len()), pointer: true}
	for _, o := range at {
		p.relocs = append(p.relocs, uint32(p.data.Len()))
		p.data.Write(binary.LittleEndian.AppendUint64(nil, o))
	}
	p.data.Write(make([]byte, 8))
	return a
}

// Do adds a system call. label describes it for users: "mount /proc".
func (s Section) Do(label string, nr uintptr, args ...Arg) { s.add(label, false, -1, nr, args) }

// Try is Do for a call that may fail.
func (s Section) Try(nr uintptr, args ...Arg) { s.add("", true, -1, nr, args) }

// Set is Do with the result stored in register r.
func (s Section) Set(r int, label string, nr uintptr, args ...Arg) { s.add(label, false, r, nr, args) }

func (s Section) add(label string, ignore bool, dst int, nr uintptr, args []Arg) {
	o := op{nr: uint32(nr), ignore: ignore, dst: dst, label: label}
	copy(o.args[:], args)
	*s.ops = append(*s.ops, o)
}

// WriteFile opens path, writes text and closes it.
func (s Section) WriteFile(label, path, text string) {
	p := s.prog
	s.Set(7, label, unix.SYS_OPENAT, N(unix.AT_FDCWD), p.S(path), N(unix.O_WRONLY|unix.O_CLOEXEC))
	s.Do(label, unix.SYS_WRITE, R(7), p.S(text), N(len(text)))
	s.Do(label, unix.SYS_CLOSE, R(7))
}

// TryWriteFile is WriteFile for a write that may fail.
func (s Section) TryWriteFile(path, text string) {
	p := s.prog
	s.add("", true, 7, unix.SYS_OPENAT, []Arg{N(unix.AT_FDCWD), p.S(path), N(unix.O_WRONLY | unix.O_CLOEXEC)})
	s.Try(unix.SYS_WRITE, R(7), p.S(text), N(len(text)))
	s.Try(unix.SYS_CLOSE, R(7))
}

// Seccomp installs a filter, a list of struct sock_filter, in the process. no_new_privs must be set before.
func (s Section) Seccomp(filter []byte) {
	p := s.prog
	code := p.B(filter)
	p.align()
	prog := Arg{value: uint64(p.data.Len()), pointer: true} // struct sock_fprog: length, padding, pointer
	p.data.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(filter)/8)))
	p.relocs = append(p.relocs, uint32(p.data.Len()))
	p.data.Write(binary.LittleEndian.AppendUint64(nil, code.value))
	s.Do("restrict system calls", unix.SYS_PRCTL, N(unix.PR_SET_SECCOMP), N(unix.SECCOMP_MODE_FILTER), prog)
}

// Exec replaces the process.
func (s Section) Exec(path string, argv, env []string) {
	p := s.prog
	s.Do("execute "+path, unix.SYS_EXECVE, p.S(path), p.strings(argv), p.strings(env))
}

// ExecFile replaces the process by the program whose descriptor is in a register.
func (s Section) ExecFile(reg int, path string, argv, env []string) {
	p := s.prog
	s.Do("execute "+path, unix.SYS_EXECVEAT, R(reg), p.S(""), p.strings(argv), p.strings(env), N(unix.AT_EMPTY_PATH))
}

// encode returns the program's layout: header, operations, data. It is valid until the next call.
func (p *Program) encode() ([]byte, error) {
	le := binary.LittleEndian
	childOff := headerSize + len(p.pre)*opSize
	dataOff := childOff + len(p.child)*opSize
	size := dataOff + p.data.Len()
	if size > programMax {
		return nil, fmt.Errorf("command line and environment take %d bytes, the limit is %d", size, programMax)
	}
	p.encoded = slices.Grow(p.encoded[:0], size)[:size]
	out := p.encoded
	clear(out[:dataOff])
	at := headerSize
	for _, section := range [][]op{p.pre, p.child} {
		for i := range section {
			section[i].encode(out[at:at+opSize], programBase+uint64(dataOff))
			at += opSize
		}
	}
	copy(out[dataOff:], p.data.Bytes())
	for _, r := range p.relocs {
		w := dataOff + int(r)
		le.PutUint64(out[w:], le.Uint64(out[w:])+programBase+uint64(dataOff))
	}
	le.PutUint64(out[0:], programMagic)
	le.PutUint32(out[8:], uint32(size))
	le.PutUint32(out[12:], p.Flags)
	le.PutUint64(out[16:], p.CloneFlags|uint64(unix.SIGCHLD))
	le.PutUint32(out[24:], uint32(len(p.pre)))
	le.PutUint32(out[28:], headerSize)
	le.PutUint32(out[32:], uint32(len(p.child)))
	le.PutUint32(out[36:], uint32(childOff))
	return out, nil
}

// encode writes the operation; data is the address of the program's data.
func (o *op) encode(out []byte, data uint64) {
	le := binary.LittleEndian
	le.PutUint32(out, o.nr)
	if o.ignore {
		out[4] = 1
	}
	out[5] = 255
	if o.dst >= 0 {
		out[5] = byte(o.dst)
	}
	for i, a := range o.args {
		v := a.value
		if a.pointer {
			v += data
		}
		if a.reg {
			out[6] |= 1 << i
		}
		le.PutUint64(out[8+8*i:], v)
	}
}

// Failure is an operation of the program that failed.
type Failure struct {
	What string // the operation's label
	Err  syscall.Errno
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.What, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

// spares are memory files of finished programs, for reuse: creating one and freeing its pages costs more than
// overwriting it. Files larger than spareMax are not kept.
var spares = make(chan *os.File, 16)

const spareMax = 64 << 10

// File opens the program as a file for descriptor FDProgram.
func (p *Program) File() (*os.File, error) {
	b, err := p.encode()
	if err != nil {
		return nil, err
	}
	var f *os.File
	select {
	case f = <-spares:
	default:
		fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, fmt.Errorf("create memory file for the launcher: %w", err)
		}
		f = os.NewFile(uintptr(fd), "program")
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Release returns a program and its file for reuse once Await has reported that the command was executed: the launcher no
// longer reads it. The program must not be used any more.
func (p *Program) Release(f *os.File) {
	if p.data.Len() <= spareMax {
		p.empty()
		programs.Put(p)
		select {
		case spares <- f:
			return
		default:
		}
	}
	f.Close()
}

// Await reads the launcher's messages from our end of the status socket until the task's command has been executed (nil
// error) or something failed. pid is the task's process in our pid namespace, 0 if it never existed. onHello runs when
// the process exists and before it is known whether its command could be executed.
func (p *Program) Await(status *os.File, onHello func(pid int)) (int, error) {
	rc, err := status.SyscallConn()
	if err != nil {
		return 0, err
	}
	pid := 0
	for {
		var buf [64]byte
		var oob [128]byte
		var n, oobn int
		var rerr error
		err := rc.Read(func(fd uintptr) bool {
			n, oobn, _, _, rerr = unix.Recvmsg(int(fd), buf[:], oob[:], unix.MSG_DONTWAIT)
			return rerr != unix.EAGAIN && rerr != unix.EINTR
		})
		if err != nil {
			return pid, err
		}
		if rerr != nil {
			return pid, fmt.Errorf("read from the launcher: %w", rerr)
		}
		if n == 0 {
			if pid == 0 {
				return 0, errors.New("the launcher ended before it could start the task")
			}
			return pid, nil
		}
		le := binary.LittleEndian
		if n < 12 {
			return pid, fmt.Errorf("the launcher sent %d bytes, want 12", n)
		}
		switch le.Uint32(buf[0:]) {
		case 1:
			msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
			if err != nil {
				return pid, err
			}
			for i := range msgs {
				if c, err := unix.ParseUnixCredentials(&msgs[i]); err == nil {
					pid = int(c.Pid)
				}
			}
			if pid == 0 {
				return 0, errors.New("the launcher's greeting carried no credentials")
			}
			if onHello != nil {
				onHello(pid)
			}
		case 2:
			return pid, p.failure(int(int32(le.Uint32(buf[4:]))), syscall.Errno(le.Uint32(buf[8:])))
		}
	}
}

func (p *Program) failure(index int, e syscall.Errno) error {
	switch {
	case index == -1:
		return &Failure{"read the launcher's program", e}
	case index == -2:
		return &Failure{"fork the task", e}
	case index < len(p.pre):
		return &Failure{p.pre[index].label, e}
	case index-len(p.pre) < len(p.child):
		return &Failure{p.child[index-len(p.pre)].label, e}
	}
	return &Failure{fmt.Sprintf("launcher operation %d", index), e}
}

// StatusPair creates the status socket: our end, which reports senders' pids, and the launcher's.
func StatusPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make status socket: %w", err)
	}
	if err := errors.Join(unix.SetNonblock(fds[0], true), unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("prepare status socket: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "status"), os.NewFile(uintptr(fds[1]), "status-child"), nil
}

// Record is a task's exit record, written by the launcher.
type Record struct {
	Status  syscall.WaitStatus
	EndedAt time.Time
	UserUS  uint64 // processor time of the main process and its waited-for children
	SysUS   uint64
	MaxRSS  uint64 // KiB
}

// ParseRecord reads an exit record. ok is false if it is absent or incomplete.
func ParseRecord(b []byte) (Record, bool) {
	le := binary.LittleEndian
	if len(b) < RecordSize || le.Uint64(b) != recordMagic {
		return Record{}, false
	}
	status := le.Uint32(b[8:])
	sec, nsec := le.Uint64(b[16:]), le.Uint64(b[24:])
	ut, st, rss := le.Uint64(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:])
	if le.Uint64(b[56:]) != uint64(recordMagic)^uint64(status)^(sec<<20)^nsec^ut^st^rss {
		return Record{}, false
	}
	return Record{Status: syscall.WaitStatus(status), EndedAt: time.Unix(int64(sec), int64(nsec)), UserUS: ut, SysUS: st, MaxRSS: rss}, true
}

var binaryOnce = sync.OnceValues(func() (string, error) {
	if len(binaryImage) == 0 {
		return "", fmt.Errorf("this build has no launcher for %s", runtime.GOARCH)
	}
	fd, err := unix.MemfdCreate("muster-launch", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("muster-launch", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return "", fmt.Errorf("create memory file for the launcher: %w", err)
	}
	if n, err := unix.Write(fd, binaryImage); err != nil || n != len(binaryImage) {
		unix.Close(fd)
		return "", fmt.Errorf("write the launcher's memory file: %d of %d bytes: %w", n, len(binaryImage), err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return "", fmt.Errorf("seal the launcher's memory file: %w", err)
	}
	// The kernel refuses to execute a file that is open for writing: open it again, read-only.
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	unix.Close(fd)
	if err != nil {
		return "", fmt.Errorf("open the launcher's memory file: %w", err)
	}
	// this process's pid and not "self": in the child that number may be another file by then
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ro), nil
})

// Binary returns a path that executes the launcher from this process, or an error if there is none.
func Binary() (string, error) { return binaryOnce() }
