package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/nodump"
)

// as calls f with a user's rights on files, so that what root sees and the user does not is neither opened nor reported. A
// user of nil or root, and an agent that is not root, change nothing.
//
// The rights are this thread's alone. They are given back instead of letting the thread end: children of the agent that
// are to end with it (PR_SET_PDEATHSIG) end with the thread that started them.
func as(u *supervisor.Credential, f func() error) error {
	if u == nil || u.UID == 0 || os.Geteuid() != 0 {
		return f()
	}
	groups, err := unix.Getgroups()
	if err != nil {
		return err
	}
	mine := &supervisor.Credential{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	for _, g := range groups {
		mine.Groups = append(mine.Groups, uint32(g))
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := assume(u)
		if err == nil {
			err = f()
		}
		back := assume(mine)
		nodump.Keep()
		if back != nil {
			done <- errors.Join(err, back)
			return // the thread ends with this goroutine, so that no other one gets its rights
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// assume gives this thread alone the rights of a user on files. With the change from root the kernel takes the capabilities
// that override them away, and with the change to root it gives them back.
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
