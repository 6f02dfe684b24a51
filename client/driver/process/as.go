package process

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/supervisor"
)

// as calls f with a user's rights on files, so that what root sees and the user does not is neither opened nor reported. A
// user of nil or root, and an agent that is not root, change nothing.
func as(u *supervisor.Credential, f func() error) error {
	if u == nil || u.UID == 0 || os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, and no other one gets its rights
		if err := assume(u); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// assume gives this thread alone the rights of a user on files. The kernel takes the capabilities that override them away
// with the change from root.
func assume(u *supervisor.Credential) error {
	var groups unsafe.Pointer
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); e != 0 {
		return fmt.Errorf("take the groups of user %d: %w", u.UID, e)
	}
	const ask = ^uintptr(0) // an id that does not exist: the call returns the present one
	for _, c := range []struct {
		name string
		call uintptr
		id   uint32
	}{{"group", unix.SYS_SETFSGID, u.GID}, {"user", unix.SYS_SETFSUID, u.UID}} {
		_, _, _ = unix.RawSyscall(c.call, uintptr(c.id), 0, 0)
		if is, _, _ := unix.RawSyscall(c.call, ask, 0, 0); uint32(is) != c.id {
			return fmt.Errorf("take the rights of %s %d: the kernel refused", c.name, c.id)
		}
	}
	return nil
}
