package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/nodump"
	"github.com/muster-sched/muster/structs"
)

// Checkpoints are looked for from inside the task: below the root directory of the task's main process, so that paths
// mean what they mean to the task, volumes and containers included, and no symbolic link leads out of it; and with the
// task's rights, so that a job learns no more through a path than its tasks could. A look costs one stat, or the
// listing of one directory.

// savedNamesMost limits how many entries of a directory are read. The newest one is missed if it lies beyond.
const savedNamesMost = 1000

// where says what to look for. Paths are as the task sees them.
type where struct {
	dir, pattern string // entries of a directory that match; "" for neither
	file         string // or one file, or a directory whose entries are checkpoints; "" for none
	done         string // a file that the task writes when a checkpoint is complete; "" for none
	home         string // the base of relative paths
}

// found is a checkpoint as it looked at one time.
type found struct {
	path  string
	time  structs.LogTime // of the last write
	bytes int64
	inode uint64
	over  bool // the task says that it is complete
}

// whose holds the rights with which a task opens files.
type whose struct {
	uid, gid int
	groups   []uint32
}

// procRoot is the root directory of a task's main process, and its rights.
type procRoot struct {
	root *os.File
	who  whose
}

// openProcRoot opens the root of a process.
func openProcRoot(pid int) (*procRoot, error) {
	proc := "/proc/" + strconv.Itoa(pid)
	fd, err := unix.Open(proc+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s := &procRoot{root: os.NewFile(uintptr(fd), proc+"/root")}
	if s.who, err = rightsOf(proc + "/status"); err != nil {
		s.root.Close()
		return nil, err
	}
	return s, nil
}

// rightsOf reads the rights of a process from its status file.
func rightsOf(status string) (w whose, err error) {
	b, err := os.ReadFile(status)
	if err != nil {
		return w, err
	}
	w.uid, w.gid = -1, -1
	for line := range strings.Lines(string(b)) {
		key, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		switch {
		case key == "Uid" && len(f) == 4:
			w.uid, _ = strconv.Atoi(f[3])
		case key == "Gid" && len(f) == 4:
			w.gid, _ = strconv.Atoi(f[3])
		case key == "Groups":
			for _, g := range f {
				n, _ := strconv.ParseUint(g, 10, 32)
				w.groups = append(w.groups, uint32(n))
			}
		}
	}
	if w.uid < 0 || w.gid < 0 {
		return w, errors.New("the user or group of the process is unknown")
	}
	return w, nil
}

// assume gives the calling thread the task's rights for file access. It cannot be undone: the goroutine must be locked
// to its thread and end afterwards.
func (w whose) assume() error {
	if os.Geteuid() != 0 {
		return nil // without root the agent's rights are the task's
	}
	var first unsafe.Pointer
	if len(w.groups) > 0 {
		first = unsafe.Pointer(&w.groups[0])
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(w.groups)), uintptr(first), 0); e != 0 {
		return fmt.Errorf("take the groups of the task: %w", e)
	}
	for _, s := range []struct {
		call uintptr
		id   int
	}{{unix.SYS_SETFSGID, w.gid}, {unix.SYS_SETFSUID, w.uid}} {
		_, _, _ = syscall.RawSyscall(s.call, uintptr(s.id), 0, 0)
		if now, _, _ := syscall.RawSyscall(s.call, ^uintptr(0), 0, 0); int(now) != s.id { // the call returns the value in effect, not an error
			return fmt.Errorf("the rights of user %d cannot be taken", w.uid)
		}
	}
	return nil
}

// look looks once, in a separate thread that takes the task's rights and ends. It answers nil if there is no checkpoint
// or it cannot be read.
func (s *procRoot) look(w where, answer chan<- *found) {
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var f *found
		err := s.who.assume()
		nodump.Keep()
		if err == nil {
			f = s.newest(w)
		}
		answer <- f
	}()
}

func (s *procRoot) open(p string, flags uint64) (*os.File, error) {
	if flags&unix.O_PATH == 0 { // O_PATH permits few other flags
		flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	fd, err := unix.Openat2(int(s.root.Fd()), p, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p), nil
}

// stat returns the status of the file that a path leads to.
func (s *procRoot) stat(p string) (st unix.Stat_t, err error) {
	f, err := s.open(p, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer f.Close()
	return st, unix.Fstat(int(f.Fd()), &st)
}

// newest returns the newest checkpoint: the one that the task reported, or the one that was written last.
func (s *procRoot) newest(w where) *found {
	var f *found
	switch {
	case w.file != "":
		st, err := s.stat(w.file)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			f = s.list(w.file, "")
		} else if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			f = foundOf(w.file, &st)
		}
	case w.pattern != "":
		f = s.list(w.dir, w.pattern)
	}
	if said := s.said(w); said != nil && (f == nil || said.time >= f.time) {
		return said
	}
	return f
}

func foundOf(p string, st *unix.Stat_t) *found {
	return &found{path: p, time: structs.LogTime(st.Mtim.Nano()), bytes: st.Size, inode: st.Ino}
}

// list returns the newest entry of a directory that matches. Without a pattern, hidden and temporary names are skipped.
func (s *procRoot) list(dir, pattern string) *found {
	d, err := s.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(savedNamesMost)
	var best *found
	isDir := false
	for _, name := range names {
		if ok, _ := path.Match(pattern, name); pattern != "" && !ok || pattern == "" && passing(name) {
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		kind := st.Mode & unix.S_IFMT
		if kind != unix.S_IFREG && kind != unix.S_IFDIR {
			continue
		}
		f := foundOf(path.Join(dir, name), &st)
		if best == nil || f.time > best.time || f.time == best.time && f.path > best.path {
			best, isDir = f, kind == unix.S_IFDIR
		}
	}
	if best != nil && isDir {
		s.inside(best)
	}
	return best
}

// inside gives a directory the newest time and the total size of its files.
func (s *procRoot) inside(f *found) {
	d, err := s.open(f.path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	defer d.Close()
	names, _ := d.Readdirnames(savedNamesMost)
	f.bytes = 0
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			f.bytes += st.Size
			f.time = max(f.time, structs.LogTime(st.Mtim.Nano()))
		}
	}
}

// passing reports whether a name is hidden or temporary.
func passing(name string) bool {
	switch path.Ext(name) {
	case ".tmp", ".part", ".partial", ".incomplete":
		return true
	}
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~")
}

// said reads the file that the task writes when a checkpoint is complete. Its first line, if any, is the checkpoint's
// path.
func (s *procRoot) said(w where) *found {
	if w.done == "" {
		return nil
	}
	st, err := s.stat(w.done)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	f := foundOf("", &st)
	f.bytes, f.over = 0, true
	file, err := s.open(w.done, unix.O_RDONLY)
	if err != nil {
		return f
	}
	defer file.Close()
	b, _ := io.ReadAll(io.LimitReader(file, 4096))
	line, _, _ := bytes.Cut(b, []byte("\n"))
	p := strings.TrimSpace(string(line))
	if p == "" {
		return f
	}
	if !path.IsAbs(p) {
		p = path.Join(w.home, p)
	}
	if st, err = s.stat(p); err != nil {
		return f // half written, or not a path
	}
	f.path, f.bytes = path.Clean(p), st.Size
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		at := f.time
		s.inside(f)
		f.time = at
	}
	return f
}

// saved returns the record of a checkpoint. Paths in the task's own directories begin with the variables that name
// them, because the next run has other directories.
func (f *found) saved(allocDir, taskDir string) *structs.Saved {
	out := &structs.Saved{Time: min(f.time, now()), Bytes: f.bytes, Path: f.path}
	for _, d := range [][2]string{{allocDir, "${NOMAD_ALLOC_DIR}"}, {taskDir, "${NOMAD_TASK_DIR}"}} {
		if rest, ok := strings.CutPrefix(f.path, d[0]+"/"); ok && d[0] != "" {
			out.Path = d[1] + "/" + rest
		}
	}
	return out
}

// describe returns a checkpoint in words.
func describe(s *structs.Saved) string {
	text := "at " + s.Time.Time().UTC().Format(time.RFC3339)
	if s.Path == "" {
		return text
	}
	size := strconv.FormatInt(s.Bytes, 10) + " bytes"
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}} {
		if s.Bytes >= u.bytes {
			size = fmt.Sprintf("%.1f %s", float64(s.Bytes)/float64(u.bytes), u.name)
		}
	}
	return text + ", " + size + " in " + s.Path
}
