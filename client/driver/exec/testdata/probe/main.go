// Probe tries what an isolated task must not do, or tells what it sees.
//
//	probe escape PID FILE...  tries to get out; says "GOT what" for each way that works. PID and FILEs are somebody else's.
//	probe calls               says of the filter's system calls which error each gave
//	probe see                 says what / holds, and where a file can be written
//	probe caps                says its user and effective capabilities
//	probe sleep               does nothing
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	switch os.Args[1] {
	case "escape":
		pid, _ := strconv.Atoi(os.Args[2])
		escape(pid, os.Args[3:])
	case "calls":
		calls()
	case "see":
		see()
	case "caps":
		b, _ := os.ReadFile("/proc/self/status")
		for _, l := range strings.Split(string(b), "\n") {
			for _, k := range []string{"Uid:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:"} {
				if v, ok := strings.CutPrefix(l, k); ok {
					fmt.Println(k, strings.Fields(v)[0])
				}
			}
		}
	case "sleep":
		fmt.Println("asleep")
		time.Sleep(time.Hour)
	}
	fmt.Println("END")
}

func try(what string, err error) {
	if err == nil {
		fmt.Println("GOT", what)
	}
}

func escape(pid int, files []string) {
	s := func(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s + "\x00"))) }
	raw := func(nr uintptr, a ...uintptr) error {
		a = append(a, make([]uintptr, 6)...)
		if _, _, e := syscall.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
			return e
		}
		return nil
	}
	dir, _ := os.Getwd()
	for _, f := range files {
		_, err := os.ReadFile(f)
		try("read "+f, err)
		try("write "+f, os.WriteFile(f, []byte("x"), 0o644))
		_, err = os.ReadDir(f)
		try("list "+f, err)
	}
	// Processes of others, by their number on the host and by the numbers that are left in here.
	for _, p := range []int{pid, -1} {
		if p > 1 {
			try("signal a neighbour", unix.Kill(p, 0))
			try("trace a neighbour", unix.PtraceAttach(p))
		}
	}
	fd, err := unix.PidfdOpen(1, 0)
	if err == nil {
		try("take a descriptor of the launcher", func() error { _, err := unix.PidfdGetfd(fd, 5, 0); return err }())
		try("enter the launcher's namespaces", unix.Setns(fd, unix.CLONE_NEWNS|unix.CLONE_NEWPID))
	}
	for _, l := range []string{"/proc/1/root/etc", "/proc/1/cwd/etc", "/proc/1/mem", "/proc/1/environ"} {
		f, err := os.OpenFile(l, os.O_RDONLY, 0)
		if err == nil {
			if l == "/proc/1/root/etc" || l == "/proc/1/cwd/etc" {
				_, err = os.Stat(l + "/../" + files[0])
			}
			f.Close()
		}
		try("use "+l, err)
	}
	try("trace the launcher", unix.PtraceAttach(1))
	// Mounts and namespaces.
	try("mount", unix.Mount("none", dir, "tmpfs", 0, ""))
	try("remount", unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	for _, m := range []string{"/proc/sys", "/sys", "/tmp", dir} {
		try("unmount "+m, unix.Unmount(m, unix.MNT_DETACH))
	}
	try("open a mount", raw(unix.SYS_OPEN_TREE, ^uintptr(99), s("/"), unix.OPEN_TREE_CLONE))
	try("open a file system", raw(unix.SYS_FSOPEN, s("tmpfs"), 0))
	try("make a mount namespace", unix.Unshare(unix.CLONE_NEWNS))
	try("make a user namespace", unix.Unshare(unix.CLONE_NEWUSER))
	try("clone into a user namespace", func() error {
		pid, _, e := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e != 0 {
			return e
		}
		if pid == 0 {
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		return nil
	}())
	// Devices, keys, the kernel.
	if err := unix.Mknod(dir+"/disk", unix.S_IFBLK|0o666, int(unix.Mkdev(8, 0))); err == nil {
		f, err := os.Open(dir + "/disk")
		if err == nil {
			f.Close()
		} else if e := err.(*os.PathError).Err; e == unix.ENXIO || e == unix.ENODEV { // let through, but there is none
			err = nil
		}
		try("open a disk", err)
		os.Remove(dir + "/disk")
	}
	if err := unix.Mknod(dir+"/mem", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))); err == nil {
		_, err := os.Open(dir + "/mem")
		try("open /dev/mem", err)
		os.Remove(dir + "/mem")
	}
	try("keys", func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true); return err }())
	try("add a key", func() error { _, err := unix.AddKey("user", "x", []byte("x"), unix.KEY_SPEC_USER_KEYRING); return err }())
	try("bpf", raw(unix.SYS_BPF, 0, 0, 0))
	try("performance counters", raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0))
	try("files by handle", raw(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0))
	try("io_uring", raw(unix.SYS_IO_URING_SETUP, 1, s(strings.Repeat("\x00", 120))))
	try("kernel log", func() error { _, err := unix.Klogctl(3, make([]byte, 100)); return err }())
	try("host name of the machine", func() error {
		if err := unix.Sethostname([]byte("hacked")); err != nil {
			return err
		}
		return unix.EPERM // its own, in its own namespace
	}())
	for _, f := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
		"/sys/fs/cgroup/memory/muster/x", "/sys/fs/cgroup/unified/cgroup.procs", "/sys/fs/cgroup/cgroup.procs"} {
		w, err := os.OpenFile(f, os.O_WRONLY, 0)
		if err == nil {
			w.Close()
		}
		try("write "+f, err)
	}
	for _, d := range []string{"/etc", "/usr/bin", "/var/lib", "/root", "/boot", "/"} {
		if os.Getuid() == 0 {
			break // which agents deny by default
		}
		f := d + "/muster-escape"
		err := os.WriteFile(f, nil, 0o600)
		try("write to "+d, err)
		if err == nil {
			os.Remove(f)
		}
	}
	n := 0
	list, _ := os.ReadDir("/proc")
	for _, e := range list {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	if n > 3 {
		fmt.Println("GOT sight of", n, "processes")
	}
}

func calls() {
	for _, c := range []struct {
		name string
		nr   uintptr
		a    [3]uintptr
	}{
		{"getpid", unix.SYS_GETPID, [3]uintptr{}},
		{"mount", unix.SYS_MOUNT, [3]uintptr{}}, {"unshare", unix.SYS_UNSHARE, [3]uintptr{0}}, {"clone3", unix.SYS_CLONE3, [3]uintptr{}},
		{"keyctl", unix.SYS_KEYCTL, [3]uintptr{}}, {"bpf", unix.SYS_BPF, [3]uintptr{99}}, {"userfaultfd", unix.SYS_USERFAULTFD, [3]uintptr{}},
		{"newer", 900, [3]uintptr{}}, {"io_uring_setup", unix.SYS_IO_URING_SETUP, [3]uintptr{}},
		{"clone of a namespace", unix.SYS_CLONE, [3]uintptr{unix.CLONE_NEWNET}}, {"vsock", unix.SYS_SOCKET, [3]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}},
		{"unix socket", unix.SYS_SOCKET, [3]uintptr{unix.AF_UNIX, unix.SOCK_STREAM}}, {"TIOCSTI", unix.SYS_IOCTL, [3]uintptr{0, unix.TIOCSTI}},
		{"FIONREAD", unix.SYS_IOCTL, [3]uintptr{0, unix.TIOCINQ, uintptr(unsafe.Pointer(new(int64)))}},
		{"get_mempolicy", unix.SYS_GET_MEMPOLICY, [3]uintptr{}}, {"kcmp", unix.SYS_KCMP, [3]uintptr{1, 1, 0}},
	} {
		_, _, e := syscall.RawSyscall(c.nr, c.a[0], c.a[1], c.a[2])
		fmt.Printf("%s: %v\n", c.name, e)
	}
}

func see() {
	list, _ := os.ReadDir("/")
	for _, e := range list {
		fmt.Println("has", "/"+e.Name())
	}
	wd, _ := os.Getwd()
	for _, d := range []string{"/", "/usr", "/etc", "/tmp", "/dev/shm", wd, os.Getenv("NOMAD_ALLOC_DIR")} {
		if err := os.WriteFile(d+"/written", []byte("x"), 0o600); err == nil {
			fmt.Println("writes", d)
			os.Remove(d + "/written")
		}
	}
	for _, f := range []string{"/dev/null", "/proc/self/status", "/sys/kernel"} {
		if _, err := os.Stat(f); err == nil {
			fmt.Println("sees", f)
		}
	}
}
