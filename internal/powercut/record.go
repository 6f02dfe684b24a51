//go:build linux

package powercut

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The environment of a recorded process: the descriptor of its socket, its directory, and the file of what it acknowledges.
const (
	childEnv = "MUSTER_POWERCUT"
	dirEnv   = "MUSTER_POWERCUT_DIR"
	acksEnv  = "MUSTER_POWERCUT_ACKS"
	childMax = time.Minute // for a recorded process to end
)

// Record runs work in another process, which is this test started again, and records what it does to the files below dir.
// Files that are there before count as synced. work must be reached by the test alone, with nothing before it that fails
// or writes below dir.
func Record(t testing.TB, dir string, work func(dir string) error) *Trace {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		os.RemoveAll(dir) // made by this process, which works in that of its parent, and whose test never cleans up
		os.Remove(filepath.Dir(dir))
		err := enter()
		if err == nil {
			err = work(os.Getenv(dirEnv))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			unix.Exit(1)
		}
		unix.Exit(0) // not os.Exit, by which a test writes its coverage: that would be recorded, too
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{dir: dir, acks: filepath.Join(t.TempDir(), "acks"), trace: &Trace{}}
	if r.trace.start, err = readTree(dir); err != nil {
		t.Fatal(err)
	}
	if err := r.record("^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"); err != nil {
		t.Fatal(err)
	}
	now, err := readTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.trace.replay(len(r.trace.ops)).image(nil, true, true); differ(got, now) != "" {
		t.Fatalf("the record does not lead to the files that are there:\n%s", differ(got, now))
	}
	return r.trace
}

// record runs a test of this program in another process.
func (r *recorder) record(test string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs := os.NewFile(uintptr(pair[1]), "child")
	cmd := exec.Command(os.Args[0], "-test.run", test)
	var out bytes.Buffer
	cmd.Env = append(os.Environ(), childEnv+"=3", dirEnv+"="+r.dir, acksEnv+"="+r.acks, "GODEBUG=asyncpreemptoff=1")
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{theirs}, &out, &out
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	stop := time.AfterFunc(childMax, func() { cmd.Process.Kill() })
	defer stop.Stop()
	listener, err := receive(pair[0])
	unix.Close(pair[0])
	if err != nil {
		cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return fmt.Errorf("the recorded process did not enter: %w\n%s", err, out.Bytes())
	}
	done := make(chan error, 1)
	go func() { done <- r.run(listener) }()
	err = cmd.Wait()
	if rerr := <-done; rerr != nil {
		return fmt.Errorf("record: %w", rerr)
	}
	if err != nil {
		return fmt.Errorf("the recorded process: %w\n%s", err, out.Bytes())
	}
	return nil
}

var acks *os.File

// enter shows the parent what this process does to files from here on.
func enter() error {
	fd, err := strconv.Atoi(os.Getenv(childEnv))
	if err != nil {
		return err
	}
	if acks, err = os.Create(os.Getenv(acksEnv)); err != nil {
		return err
	}
	runtime.LockOSThread()
	listener, err := install()
	if err != nil {
		return fmt.Errorf("install the filter of system calls: %w", err)
	}
	runtime.UnlockOSThread()
	if err := unix.Sendmsg(fd, []byte{1}, unix.UnixRights(listener), nil, 0); err != nil {
		return err
	}
	return errors.Join(unix.Close(listener), unix.Close(fd))
}

// Ack says that the recorded process has acknowledged something, in a line. After any later crash it must be there.
func Ack(format string, args ...any) {
	fmt.Fprintf(acks, format+"\n", args...)
}

func receive(fd int) (int, error) {
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, on, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		return -1, errors.Join(err, errors.New("it has ended"))
	}
	ms, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil || len(ms) == 0 {
		return -1, errors.Join(err, errors.New("no descriptor"))
	}
	fds, err := unix.ParseUnixRights(&ms[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// calls are the system calls that change files. The others go on without being seen.
var calls = []uint32{
	unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
	unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV, unix.SYS_PWRITEV, unix.SYS_PWRITEV2, unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE,
	unix.SYS_FTRUNCATE, unix.SYS_TRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC,
}

// install asks the kernel to notify a listener of the calls of all threads of this process, before they are carried out.
func install() (int, error) {
	prog := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the number of the call
	for i, nr := range calls {
		prog = append(prog, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: uint8(len(calls) - i)})
	}
	prog = append(prog,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	const waitKillable = 1 << 5 // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: signals do not interrupt a call that waits
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | waitKillable)
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&f)))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// notif and reply are the kernel's seccomp_notif and seccomp_notif_resp.
type notif struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type reply struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

const (
	ioctlRecv = 0xc0502100
	ioctlSend = 0xc0182101
	goOn      = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
)

type recorder struct {
	dir, acks string
	trace     *Trace
	mem       *os.File // of the recorded process
}

// run answers the kernel until the process has ended. The process waits meanwhile, so the order of its operations is
// that of the record.
func (r *recorder) run(listener int) error {
	defer unix.Close(listener)
	for {
		fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return err
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			return nil // no process has the filter any more
		}
		var n notif
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), ioctlRecv, uintptr(unsafe.Pointer(&n))); errno == unix.ENOENT || errno == unix.EINTR {
			continue
		} else if errno != 0 {
			return errno
		}
		ops, refuse, err := r.look(&n)
		if err != nil {
			return errors.Join(err, unix.Kill(int(n.pid), unix.SIGKILL))
		}
		a := reply{id: n.id, flags: goOn}
		if refuse != 0 {
			a.flags, a.err = 0, -int32(refuse)
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), ioctlSend, uintptr(unsafe.Pointer(&a))); errno == unix.ENOENT {
			continue // it was interrupted and will ask again
		} else if errno != 0 {
			return errno
		}
		r.trace.ops = append(r.trace.ops, ops...)
	}
}

// look returns the operations of a call, or the error that it must get: calls that copy within the kernel are refused,
// and their callers write instead.
func (r *recorder) look(n *notif) (ops []op, refuse unix.Errno, err error) {
	a := n.args
	switch n.nr {
	case unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE:
		return nil, unix.ENOSYS, nil
	case unix.SYS_OPENAT:
		ops, err = r.open(n, a[2])
	case unix.SYS_OPENAT2:
		var how []byte
		if how, err = r.memory(n, a[2], 8); err == nil {
			ops, err = r.open(n, binary.LittleEndian.Uint64(how))
		}
	case unix.SYS_MKDIRAT:
		ops, err = r.names(n, opMkdir, a[0], a[1], 0, 0)
	case unix.SYS_UNLINKAT:
		ops, err = r.names(n, opUnlink, a[0], a[1], 0, 0)
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		if n.nr == unix.SYS_RENAMEAT2 && a[4] == unix.RENAME_EXCHANGE {
			return nil, 0, errors.New("an exchange of names cannot be recorded")
		}
		ops, err = r.names(n, opRename, a[0], a[1], a[2], a[3])
	case unix.SYS_TRUNCATE, unix.SYS_LINKAT, unix.SYS_SYMLINKAT:
		ops, err = r.names(n, opOther, unix.AT_FDCWD&0xffffffff, a[0], 0, 0)
	default:
		ops, err = r.data(n)
	}
	for _, o := range ops {
		if o.kind == opOther {
			return nil, 0, fmt.Errorf("call %d on %s cannot be recorded", n.nr, o.path)
		}
	}
	return ops, 0, err
}

// open records that a file is created or truncated.
func (r *recorder) open(n *notif, flags uint64) ([]op, error) {
	if flags&(unix.O_CREAT|unix.O_TRUNC) == 0 {
		return nil, nil
	}
	ops, err := r.names(n, opCreate, n.args[0], n.args[1], 0, 0)
	if err != nil || len(ops) == 0 {
		return nil, err
	}
	if flags&(unix.O_SYNC|unix.O_DSYNC) != 0 {
		return nil, fmt.Errorf("%s is opened for synced writes, which cannot be recorded", ops[0].path)
	}
	st, err := os.Stat(filepath.Join(r.dir, ops[0].path))
	switch {
	case errors.Is(err, fs.ErrNotExist) && flags&unix.O_CREAT != 0:
		return ops, nil
	case err == nil && flags&unix.O_TRUNC != 0 && flags&unix.O_EXCL == 0 && st.Size() > 0:
		return []op{{kind: opTruncate, path: ops[0].path}}, nil
	}
	return nil, nil // it fails, or only opens
}

// names records a call with one or two names. Calls that will fail are left out.
func (r *recorder) names(n *notif, kind opKind, dir1, name1, dir2, name2 uint64) ([]op, error) {
	var paths [2]string
	for i, at := range [][2]uint64{{dir1, name1}, {dir2, name2}} {
		if at[1] == 0 {
			continue
		}
		name, err := r.text(n, at[1])
		if err != nil {
			return nil, err
		}
		if !filepath.IsAbs(name) {
			link := fmt.Sprintf("/proc/%d/cwd", n.pid)
			if fd := int32(at[0]); fd >= 0 {
				link = fmt.Sprintf("/proc/%d/fd/%d", n.pid, fd)
			}
			base, err := os.Readlink(link)
			if err != nil {
				return nil, err
			}
			name = filepath.Join(base, name)
		}
		if parent, err := filepath.EvalSymlinks(filepath.Dir(name)); err == nil {
			name = filepath.Join(parent, filepath.Base(name))
		}
		paths[i], _ = r.below(name)
	}
	if paths[0] == "" && paths[1] == "" {
		return nil, nil
	}
	_, err := os.Lstat(filepath.Join(r.dir, paths[0]))
	exists := err == nil
	switch kind {
	case opMkdir:
		if exists {
			return nil, nil
		}
	case opUnlink:
		list, err := os.ReadDir(filepath.Join(r.dir, paths[0]))
		dir := n.args[2]&unix.AT_REMOVEDIR != 0
		if !exists || dir != (err == nil) || len(list) > 0 {
			return nil, nil
		}
	case opRename:
		if !exists {
			return nil, nil
		}
		if paths[0] == "" || paths[1] == "" {
			return nil, fmt.Errorf("a file is renamed into or out of %s", r.dir)
		}
	}
	return []op{{kind: kind, path: paths[0], to: paths[1]}}, nil
}

// data records a call that has a descriptor.
func (r *recorder) data(n *notif) ([]op, error) {
	a := n.args
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, int32(a[0])))
	if err != nil {
		return nil, nil // the call will fail
	}
	if link == r.acks && n.nr == unix.SYS_WRITE {
		b, err := r.memory(n, a[1], a[2])
		return []op{{kind: opAck, data: b}}, err
	}
	path, ok := r.below(link)
	if !ok || strings.HasSuffix(path, " (deleted)") {
		return nil, nil
	}
	o := op{path: path}
	switch n.nr {
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		o.kind = opSync
	case unix.SYS_FTRUNCATE:
		o.kind, o.at = opTruncate, int64(a[1])
	case unix.SYS_FALLOCATE:
		st, err := os.Stat(link)
		if err != nil {
			return nil, err
		}
		o.kind, o.at = opTruncate, max(st.Size(), int64(a[2]+a[3]))
		if a[1] != 0 {
			o.kind = opOther
		}
	case unix.SYS_PWRITE64:
		o.kind, o.at = opWrite, int64(a[3])
		o.data, err = r.memory(n, a[1], a[2])
	case unix.SYS_WRITE:
		o.kind = opWrite
		if o.at, err = r.position(n, link); err == nil {
			o.data, err = r.memory(n, a[1], a[2])
		}
	default:
		o.kind = opOther
	}
	return []op{o}, err
}

// position returns where a write goes.
func (r *recorder) position(n *notif, path string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", n.pid, int32(n.args[0])))
	if err != nil {
		return 0, err
	}
	var pos, flags int64
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && f[0] == "pos:":
			pos, err = strconv.ParseInt(f[1], 10, 64)
		case len(f) == 2 && f[0] == "flags:":
			flags, err = strconv.ParseInt(f[1], 8, 64)
		}
		if err != nil {
			return 0, err
		}
	}
	if flags&unix.O_APPEND == 0 {
		return pos, nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// below returns a path relative to the recorded directory, and whether it is in it.
func (r *recorder) below(path string) (string, bool) {
	if path == r.dir {
		return ".", true
	}
	return strings.CutPrefix(path, r.dir+"/")
}

// memory reads from the recorded process.
func (r *recorder) memory(n *notif, at, size uint64) ([]byte, error) {
	if r.mem == nil {
		f, err := os.Open(fmt.Sprintf("/proc/%d/mem", n.pid))
		if err != nil {
			return nil, err
		}
		r.mem = f
	}
	b := make([]byte, size)
	_, err := r.mem.ReadAt(b, int64(at))
	return b, err
}

// text reads a string that ends with a zero byte.
func (r *recorder) text(n *notif, at uint64) (string, error) {
	var s []byte
	for len(s) < unix.PathMax {
		b, err := r.memory(n, at+uint64(len(s)), 64-at%64) // never beyond the page
		if err != nil {
			return "", err
		}
		if i := slices.Index(b, 0); i >= 0 {
			return string(append(s, b[:i]...)), nil
		}
		s = append(s, b...)
	}
	return "", errors.New("a name without an end")
}
