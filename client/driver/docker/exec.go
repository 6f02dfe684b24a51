package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/client/driver"
)

// Exec runs a command in the container and returns its exit code.
func (t *Task) Exec(ctx context.Context, req driver.ExecRequest) (int, error) {
	if t.over() {
		return 0, driver.ErrNotRunning
	}
	user := req.User
	if user == "" {
		user = t.state.User
	}
	api := t.d.api
	made, err := api.ExecCreate(ctx, t.state.Container, client.ExecCreateOptions{
		Cmd: req.Command, TTY: req.TTY, User: user, AttachStdin: req.Stdin != nil, AttachStdout: true, AttachStderr: !req.TTY,
	})
	if gone(err) || errdefs.IsConflict(err) {
		return 0, driver.ErrNotRunning
	}
	if err != nil {
		return 0, fmt.Errorf("docker: exec: %w", brief(err))
	}
	conn, err := api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{TTY: req.TTY})
	if err != nil {
		return 0, fmt.Errorf("docker: exec: %w", brief(err))
	}
	defer conn.Close()
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Add(1)
	go func() { // ends with the command, or stops it when the caller is done
		defer wg.Done()
		for {
			select {
			case size, ok := <-req.Resize:
				if !ok {
					req.Resize = nil
					continue
				}
				_, _ = api.ExecResize(ctx, made.ID, client.ExecResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
			case <-ctx.Done():
				t.killExec(made.ID)
				conn.Close()
				return
			case <-done:
				return
			}
		}
	}()
	if req.Stdin != nil {
		go func() { // ends with the caller's input, which the caller must close
			_, _ = io.Copy(conn.Conn, req.Stdin)
			_ = conn.CloseWrite()
		}()
	}
	stdout, stderr := orDiscard(req.Stdout), orDiscard(req.Stderr)
	if req.TTY {
		_, err = io.Copy(stdout, conn.Reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, conn.Reader)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EIO) {
		t.killExec(made.ID)
		return 0, fmt.Errorf("docker: exec: output: %w", err)
	}
	in, err := api.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err != nil {
		return 0, fmt.Errorf("docker: exec: exit code: %w", brief(err))
	}
	return in.ExitCode, nil
}

// killExec kills a command whose caller is gone. The engine has no call for it, but reports the process.
func (t *Task) killExec(id string) {
	ctx, cancel := context.WithTimeout(t.d.ctx, pingPatience)
	defer cancel()
	in, err := t.d.api.ExecInspect(ctx, id, client.ExecInspectOptions{})
	if err != nil || !in.Running || in.PID <= 1 || in.ContainerID != t.state.Container {
		return
	}
	if processes(in.PID) == nil {
		return // not a process of this machine
	}
	_ = syscall.Kill(in.PID, syscall.SIGKILL)
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
