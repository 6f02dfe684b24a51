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

	"github.com/muster-sched/muster/structs"
)

// Looking for checkpoints. A look happens where the task is: below the directory that the task's main process has as its
// root, so that paths mean what they mean to the task, volumes and containers included, and no link leads out of it; and
// with the task's own rights, so that a job that names a path learns no more from it than its tasks could. It costs one
// stat, or the listing of one directory.

// savedNamesMost is how many entries of a directory are looked at; what is beyond may hide the newest.
const savedNamesMost = 1000

// where says what to look for, in paths as the task sees them.
type where struct {
	dir, pattern string // entries of a directory that match; "" for neither
	file         string // or one file, or a directory whose entries count; "" for none
	done         string // a file that the task writes when a checkpoint is complete; "" for none
	home         string // what relative paths begin at
}

// found is a checkpoint as it looked at one time.
type found struct {
	path  string
	time  structs.LogTime // when it was written to last
	bytes int64
	inode uint64
	over  bool // the task itself says that it is complete
}

// whose are the rights by which a task opens files.
type whose struct {
	uid, gid int
	groups   []uint32
}

// procRoot is the root of a task's main process, and its rights.
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
		return w, errors.New("the process tells no rights")
	}
	return w, nil
}

// assume gives the calling thread the rights of a task where files are concerned. There is no way back: the goroutine must be
// locked to its thread, and end.
func (w whose) assume() error {
	if os.Geteuid() != 0 {
		return nil // we have no others than our own
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
		syscall.RawSyscall(s.call, uintptr(s.id), 0, 0)
		if now, _, _ := syscall.RawSyscall(s.call, ^uintptr(0), 0, 0); int(now) != s.id { // it answers what is so
			return fmt.Errorf("the rights of user %d cannot be taken", w.uid)
		}
	}
	return nil
}

// look looks once, in a thread of its own that takes the task's rights and ends. Its answer is nil when there is nothing, or
// nothing that can be seen.
func (s *procRoot) look(w where, answer chan<- *found) {
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var f *found
		if s.who.assume() == nil {
			f = s.newest(w)
		}
		answer <- f
	}()
}

func (s *procRoot) open(p string, flags uint64) (*os.File, error) {
	if flags&unix.O_PATH == 0 { // which goes with few others
		flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	fd, err := unix.Openat2(int(s.root.Fd()), p, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p), nil
}

// stat is what a path leads to.
func (s *procRoot) stat(p string) (st unix.Stat_t, err error) {
	f, err := s.open(p, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer f.Close()
	return st, unix.Fstat(int(f.Fd()), &st)
}

// newest is the newest checkpoint: what the task said, or what was written last.
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

// list gives the newest entry of a directory that matches; without a pattern any that is neither hidden nor being written
// under a temporary name.
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

// inside makes a directory as new and as large as the files in it.
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

// passing tells the names of what is not a checkpoint, or not one yet.
func passing(name string) bool {
	switch path.Ext(name) {
	case ".tmp", ".part", ".partial", ".incomplete":
		return true
	}
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~")
}

// said reads the file that the task writes when a checkpoint is complete. It may be empty; otherwise its first line is the
// checkpoint's path.
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
		return f // it is being written, or means nothing to us
	}
	f.path, f.bytes = path.Clean(p), st.Size
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		at := f.time
		s.inside(f)
		f.time = at
	}
	return f
}

// saved is the record of what was found, with the task's own directories by the variables that name them: the next run has
// others.
func (f *found) saved(allocDir, taskDir string) *structs.Saved {
	out := &structs.Saved{Time: min(f.time, now()), Bytes: f.bytes, Path: f.path}
	for _, d := range [][2]string{{allocDir, "${NOMAD_ALLOC_DIR}"}, {taskDir, "${NOMAD_TASK_DIR}"}} {
		if rest, ok := strings.CutPrefix(f.path, d[0]+"/"); ok && d[0] != "" {
			out.Path = d[1] + "/" + rest
		}
	}
	return out
}

// describe tells of a checkpoint in words.
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
