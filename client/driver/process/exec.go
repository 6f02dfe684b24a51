package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/ranks"
	"github.com/muster-sched/muster/client/supervisor"
)

// outputGrace is how long output is still collected after an executed command has ended, if its child processes keep
// the streams open.
const outputGrace = time.Second

// Exec runs a command inside the task. A Stdin that never ends keeps one goroutine: the caller must close it.
func (t *Task) Exec(ctx context.Context, req driver.ExecRequest) (int, error) {
	if len(req.Command) == 0 || req.Command[0] == "" {
		return -1, errors.New("exec: no command given")
	}
	s := t.snapshot()
	if s.Ended {
		return -1, driver.ErrNotRunning
	}
	env, err := environOf(s.PID)
	if err != nil {
		return -1, err
	}
	if req.Rank != nil {
		if err := rankEnv(env, *req.Rank); err != nil {
			return -1, err
		}
	}
	cred := t.state.User
	if req.User != "" {
		if cred, err = LookUser(req.User, false); err != nil {
			return -1, err
		}
		if t.state.User != nil && t.state.User.UID != 0 && cred.UID != t.state.User.UID {
			return -1, fmt.Errorf("exec: the task does not run as root, so its commands cannot run as %q", req.User)
		}
	}
	path, err := Search{Driver: "exec", Dirs: t.state.TaskDirs, Dir: t.state.Dir, AsUser: t.state.Posture.AsUser, Env: env, Root: t.state.Root, User: cred}.Look(req.Command[0])
	if err != nil {
		return -1, err
	}
	if req.TTY {
		if _, ok := env["TERM"]; !ok {
			env["TERM"] = "xterm"
		}
	}
	e := supervisor.Entry{Task: s, Path: path, Argv: req.Command, Env: Environ(env), Dir: t.state.Dir, User: cred, Rights: t.state.Rights, Posture: t.state.Posture, TTY: req.TTY, Whole: req.Whole}
	if req.TTY {
		return t.execTTY(ctx, e, req)
	}
	return t.execPipes(ctx, e, req)
}

// rankEnv turns the environment of a whole task into that of one of its ranks.
func rankEnv(env map[string]string, rank int) error {
	first, ferr := strconv.Atoi(env["MUSTER_FIRST_RANK"])
	n, nerr := strconv.Atoi(env["MUSTER_RANKS"])
	if ferr != nil || nerr != nil {
		return errors.New("exec: this task has no ranks: its group has neither a launch nor a gang block")
	}
	if rank < first || rank >= first+n {
		return fmt.Errorf("exec: rank %d is not in this allocation, whose ranks are %d to %d", rank, first, first+n-1)
	}
	for _, kv := range ranks.Environ(Environ(env), rank, rank-first) {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	return nil
}

func (t *Task) execPipes(ctx context.Context, e supervisor.Entry, req driver.ExecRequest) (int, error) {
	var theirs, ours []*os.File
	defer func() {
		for _, f := range append(theirs, ours...) {
			f.Close()
		}
	}()
	var stdin *os.File
	if req.Stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return -1, err
		}
		e.Streams[0], stdin = r, w
		theirs, ours = append(theirs, r), append(ours, w)
	}
	done := make(chan struct{}, 2)
	type copying struct {
		to   io.Writer
		from *os.File
	}
	var outs []copying
	for i, w := range []io.Writer{req.Stdout, req.Stderr} {
		if w == nil {
			continue
		}
		r, pw, err := os.Pipe()
		if err != nil {
			return -1, err
		}
		e.Streams[1+i] = pw
		theirs, ours = append(theirs, pw), append(ours, r)
		outs = append(outs, copying{w, r})
	}
	run, err := supervisor.Enter(e)
	if err != nil {
		return -1, t.translate(err)
	}
	for _, f := range theirs {
		f.Close()
	}
	theirs = nil
	if stdin != nil {
		go func() {
			_, _ = io.Copy(stdin, req.Stdin) // the command may end before its input
			stdin.Close()
		}()
	}
	for _, c := range outs {
		go func() {
			if _, err := io.Copy(c.to, c.from); err != nil && !errors.Is(err, os.ErrClosed) {
				run.Kill() // the output has no reader any more
			}
			done <- struct{}{}
		}()
	}
	code, err := run.Wait(ctx)
	grace := time.NewTimer(outputGrace)
	defer grace.Stop()
	for range outs {
		select {
		case <-done:
		case <-grace.C:
			return code, err
		}
	}
	return code, err
}

func (t *Task) execTTY(ctx context.Context, e supervisor.Entry, req driver.ExecRequest) (int, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return -1, fmt.Errorf("exec: open a terminal: %w", err)
	}
	defer master.Close()
	if e.User != nil {
		if err := slave.Chown(int(e.User.UID), int(e.User.GID)); err != nil {
			slave.Close()
			return -1, fmt.Errorf("exec: hand the terminal over: %w", err)
		}
	}
	e.Streams = [3]*os.File{slave, slave, slave}
	size := driver.TermSize{Height: 24, Width: 80}
	select {
	case s, ok := <-req.Resize:
		if ok {
			size = s
		}
	default:
	}
	resize(master, size)
	run, err := supervisor.Enter(e)
	slave.Close()
	if err != nil {
		return -1, t.translate(err)
	}
	ended := make(chan struct{})
	defer close(ended)
	if req.Resize != nil {
		go func() {
			for {
				select {
				case s, ok := <-req.Resize:
					if !ok {
						return
					}
					resize(master, s)
				case <-ended:
					return
				}
			}
		}()
	}
	if req.Stdin != nil {
		go func() {
			_, _ = io.Copy(master, req.Stdin) // the command may end before its input
			_, _ = master.Write([]byte{4})    // end of input on a terminal
		}()
	}
	out := req.Stdout
	if out == nil {
		out = io.Discard
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		// At the end the kernel answers EIO: the terminal has no holder any more.
		buf := make([]byte, 32<<10)
		for {
			n, err := master.Read(buf)
			if n > 0 {
				if _, werr := out.Write(buf[:n]); werr != nil {
					run.Kill()
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	code, err := run.Wait(ctx)
	select {
	case <-copied:
	case <-time.After(outputGrace):
	}
	return code, err
}

func resize(master *os.File, s driver.TermSize) {
	clamp := func(n int) uint16 { return uint16(min(max(n, 1), 10_000)) }
	// Not pty.Setsize, whose Fd makes the terminal blocking and races with Close.
	if rc, err := master.SyscallConn(); err == nil {
		rc.Control(func(fd uintptr) {
			unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: clamp(s.Height), Col: clamp(s.Width)})
		})
	}
}
