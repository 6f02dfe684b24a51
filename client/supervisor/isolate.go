package supervisor

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/supervisor/launch"
	"github.com/muster-sched/muster/client/taskfs"
)

// Registers of the launcher that hold detached mounts while the task's view is built, and descriptors.
const (
	regAlloc = iota
	regTmp
	regProgram // Spec.Early
	regRoot
	regDev
	regSys
	regPlace
	regShown // Isolation.Program
)

// view builds the operations for the task's view of the machine.
type view struct {
	*Isolation
	p *launch.Program
	c launch.Section
}

func (v view) mount(label, source, target, fstype string, flags uintptr, data string) {
	d := launch.N(0)
	if data != "" {
		d = v.p.S(data)
	}
	v.c.Do(label, unix.SYS_MOUNT, v.p.S(source), v.p.S(target), v.p.S(fstype), launch.N(flags), d)
}

// hold keeps a copy of the mount at path in a register: it can be mounted elsewhere later, even after path is covered.
func (v view) hold(reg int, path string, flags int) {
	v.c.Set(reg, "hold "+path, unix.SYS_OPEN_TREE, launch.N(unix.AT_FDCWD), v.p.S(path), launch.N(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|flags))
}

// below opens a directory in the allocation's and keeps it in a register. Tasks of the allocation may replace names on
// the way, so no link is followed.
func (v view) below(reg int, path string, resolve uint64) {
	n := launch.N[int]
	rel, err := filepath.Rel(v.AllocRoot, path)
	if err != nil {
		rel = path
	}
	v.c.Set(reg, "open "+v.AllocRoot, unix.SYS_OPENAT, n(unix.AT_FDCWD), v.p.S(v.AllocRoot), n(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC))
	v.c.Set(reg, "open "+path, unix.SYS_OPENAT2, launch.R(reg), v.p.S(rel), v.p.B(openHow(resolve)), n(openHowSize))
}

// openHowSize is the size of struct open_how.
const openHowSize = 24

// openHow returns a struct open_how that opens a directory.
func openHow(resolve uint64) []byte {
	return appendU64(appendU64(appendU64(nil, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC), 0), resolve)
}

// holdBelow is hold for a directory in the allocation's, from which nothing of another file system can appear.
func (v view) holdBelow(reg int, path string) {
	v.below(reg, path, taskfs.Strict)
	v.c.Set(reg, "hold "+path, unix.SYS_OPEN_TREE, launch.R(reg), v.p.S(""), launch.N(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH))
}

// put mounts what a register holds. In the task's own root links are followed: they cannot lead out of it.
func (v view) put(reg int, path string) {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	if v.Root != nil {
		flags |= unix.MOVE_MOUNT_T_SYMLINKS
	}
	v.c.Do("show "+path, unix.SYS_MOVE_MOUNT, launch.R(reg), v.p.S(""), launch.N(unix.AT_FDCWD), v.p.S(path), launch.N(flags))
}

// mkdirs creates the missing directories between base and path.
func (v view) mkdirs(base, path string) {
	rel, err := filepath.Rel(base, path)
	if err != nil {
		return
	}
	for _, e := range strings.Split(rel, "/") {
		base = filepath.Join(base, e)
		v.c.Try(unix.SYS_MKDIRAT, launch.N(unix.AT_FDCWD), v.p.S(base), launch.N(0o755))
	}
}

// readOnly makes a mount read-only; with AT_RECURSIVE in flags also those below it.
func (v view) readOnly(path string, flags int) (nr uintptr, args []launch.Arg) {
	attr := appendU64(nil, unix.MOUNT_ATTR_RDONLY) // struct mount_attr: attr_set, attr_clr, propagation, userns_fd
	attr = append(attr, make([]byte, 24)...)
	return unix.SYS_MOUNT_SETATTR, []launch.Arg{launch.N(unix.AT_FDCWD), v.p.S(path), launch.N(flags), v.p.B(attr), launch.N(len(attr))}
}

func (i *Isolation) program(p *launch.Program, c launch.Section) {
	v, n := view{i, p, c}, launch.N[int]
	c.Do("make namespaces", unix.SYS_UNSHARE, n(unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS))
	if i.Hostname != "" {
		c.Do("set the host's name", unix.SYS_SETHOSTNAME, p.S(i.Hostname), n(len(i.Hostname)))
	}
	v.mount("make mounts private", "none", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	v.stage()
	v.holdProgram()
	// Writable mounts are held before anything covers them or makes them read-only.
	held := i.AllocRoot != "" && (i.HideDir != "" || i.ReadOnly || i.Root != nil)
	if held {
		v.hold(regAlloc, i.AllocRoot, unix.AT_RECURSIVE)
	}
	switch {
	case i.TmpDir == "":
	case i.AllocRoot == "":
		v.hold(regTmp, i.TmpDir, 0)
	default:
		v.holdBelow(regTmp, i.TmpDir)
	}
	switch {
	case i.Root != nil:
		v.changeRoot()
	case i.ReadOnly:
		nr, args := v.readOnly("/", unix.AT_RECURSIVE)
		c.Do("make the root read-only", nr, args...)
	}
	v.mount("mount /proc", "proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	// Settings of the whole machine and other tasks' control groups, which a task that is root could otherwise write.
	for _, f := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"} {
		c.Try(unix.SYS_MOUNT, p.S(f), p.S(f), p.S(""), n(unix.MS_BIND|unix.MS_REC), n(0))
		c.Try(unix.SYS_MOUNT, p.S(""), p.S(f), p.S(""), n(unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC), n(0))
	}
	nr, args := v.readOnly("/sys", unix.AT_RECURSIVE)
	c.Try(nr, args...)
	shm := i.ShmMiB
	if shm <= 0 {
		shm = 64
	}
	v.mount("mount /dev/shm", "shm", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%dm", shm))
	v.files(held)
	if i.Program.Source != "" {
		v.put(regShown, i.Program.Target) // in a directory of the agent's, so that no task can have replaced it
	}
	v.volumes()
	v.etc()
	if i.TmpDir != "" {
		v.mount("protect /tmp", "", "/tmp", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV, "")
	}
	if i.Root != nil && i.ReadOnly {
		nr, args := v.readOnly("/", 0) // mounts below it keep their mode
		c.Do("make the root read-only", nr, args...)
	}
}

// changeRoot makes another directory the root, with the host's /dev and /sys in it. Later paths are resolved in the new
// root, so its links cannot lead out.
func (v view) changeRoot() {
	n, c, p := launch.N[int], v.c, v.p
	open := n(unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC)
	c.Set(regRoot, "open "+v.Root.Base, unix.SYS_OPENAT, n(unix.AT_FDCWD), p.S(v.Root.Base), open)
	how := openHow(unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS)
	c.Set(regRoot, "open the task's root "+v.Root.Path, unix.SYS_OPENAT2, launch.R(regRoot), p.S(v.Root.Path), p.B(how), n(openHowSize))
	c.Set(regRoot, "hold the task's root", unix.SYS_OPEN_TREE, launch.R(regRoot), p.S(""), n(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH))
	v.hold(regDev, "/dev", unix.AT_RECURSIVE)
	v.hold(regSys, "/sys", unix.AT_RECURSIVE)
	v.put(regRoot, v.AllocRoot) // temporarily; any directory would do
	c.Do("enter the task's root", unix.SYS_CHDIR, p.S(v.AllocRoot))
	c.Do("change the root", unix.SYS_PIVOT_ROOT, p.S("."), p.S("."))
	c.Do("leave the old root", unix.SYS_UMOUNT2, p.S("."), n(unix.MNT_DETACH))
	c.Do("enter the task's root", unix.SYS_CHDIR, p.S("/"))
	for _, d := range []string{"/proc", "/sys", "/dev", "/tmp"} {
		v.mkdirs("/", d)
	}
	v.put(regDev, "/dev")
	v.put(regSys, "/sys")
}

// files mounts the allocation and /tmp.
func (v view) files(held bool) {
	switch {
	case !held:
		if v.TmpDir != "" {
			v.put(regTmp, "/tmp")
		}
	case v.Root != nil:
		if v.TmpDir != "" {
			v.put(regTmp, "/tmp") // first: the allocation may be below /tmp
		}
		v.mkdirs("/", v.AllocRoot)
		v.put(regAlloc, v.AllocRoot)
	case v.HideDir == "":
		if v.TmpDir != "" {
			v.put(regTmp, "/tmp")
			if strings.HasPrefix(v.AllocRoot, "/tmp/") {
				v.mkdirs("/tmp", v.AllocRoot)
			}
		}
		v.put(regAlloc, v.AllocRoot)
	case v.TmpDir != "" && strings.HasPrefix(v.HideDir+"/", "/tmp/"):
		// The private /tmp already hides a data directory below /tmp; the allocation is mounted on top of it.
		v.put(regTmp, "/tmp")
		v.mkdirs("/tmp", v.AllocRoot)
		v.put(regAlloc, v.AllocRoot)
	default:
		v.mount("hide "+v.HideDir, "hidden", v.HideDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755,size=1m")
		v.mkdirs(v.HideDir, v.AllocRoot)
		v.put(regAlloc, v.AllocRoot)
		v.mount("protect "+v.HideDir, "", v.HideDir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		if v.TmpDir != "" {
			v.put(regTmp, "/tmp")
		}
	}
}

// holdProgram keeps a read-only copy of the mount of a program of the host, which the task's own /tmp, its root or the
// hidden directory may cover.
func (v view) holdProgram() {
	if v.Program.Source == "" {
		return
	}
	v.hold(regShown, v.Program.Source, 0)
	v.protect(regShown, v.Program.Target, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, 0)
}

// protect gives a held mount attributes; with AT_RECURSIVE in flags also those below it.
func (v view) protect(reg int, path string, set uint64, flags int) {
	n := launch.N[int]
	attr := append(appendU64(nil, set), make([]byte, 24)...) // struct mount_attr
	v.c.Do("protect "+path, unix.SYS_MOUNT_SETATTR, launch.R(reg), v.p.S(""), n(unix.AT_EMPTY_PATH|flags), v.p.B(attr), n(len(attr)))
}

// stage mounts the volumes below the allocation's directory, while the host's root is still visible. They move with
// that directory. A volume is mounted on what was opened: by path, a task of the allocation could have it mounted over
// a directory of the host that later steps trust.
func (v view) stage() {
	n := launch.N[int]
	for _, x := range v.Volumes {
		set := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if x.ReadOnly {
			set |= unix.MOUNT_ATTR_RDONLY
		}
		v.hold(regTmp, x.Source, unix.AT_RECURSIVE)
		v.protect(regTmp, x.Stage, set, unix.AT_RECURSIVE)
		v.below(regPlace, x.Stage, taskfs.Strict&^unix.RESOLVE_NO_XDEV) // it may be in another volume
		v.c.Do("mount "+x.Source, unix.SYS_MOVE_MOUNT, launch.R(regTmp), v.p.S(""), launch.R(regPlace), v.p.S(""), n(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	}
}

// volumes mounts the staged volumes at their targets.
func (v view) volumes() {
	for _, x := range v.Volumes {
		if x.Target == "" {
			continue
		}
		if x.Make {
			v.mkdirs("/", x.Target)
		}
		v.mount("show "+x.Target, x.Stage, x.Target, "", unix.MS_BIND|unix.MS_REC, "")
	}
}

// etc mounts files of the allocation over others. A task's own root may lack those.
func (v view) etc() {
	for _, f := range v.Files {
		if v.Root != nil {
			v.mkdirs("/", filepath.Dir(f.Target))
			v.c.Try(unix.SYS_OPENAT, launch.N(unix.AT_FDCWD), v.p.S(f.Target), launch.N(unix.O_RDONLY|unix.O_CREAT|unix.O_CLOEXEC), launch.N(0o644))
		}
		v.mount("show "+f.Target, f.Source, f.Target, "", unix.MS_BIND, "")
		v.mount("protect "+f.Target, "", f.Target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
}
