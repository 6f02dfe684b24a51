package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/muster-sched/muster/nomadlike/wire"
)

const (
	execHeartbeat = 10 * time.Second // an empty frame, so that proxies keep a quiet session open
	execSilence   = 30 * time.Second // without an answer to a ping for this long, the other side is gone even if the connection looks open
)

var errExecSilence = fmt.Errorf("nothing has been heard of the agent for %s", execSilence)

type allocExecOptions struct {
	*env
	task            string
	job, stdin, tty bool
	escape          string
	rank            int // -1: none
}

func newAllocExec(e *env) *cobra.Command {
	o := &allocExecOptions{env: e, rank: -1}
	c := e.verb("exec [options] ALLOCATION COMMAND [ARGUMENT...]", "Run a command inside a running task",
		"Run a command inside a running task. Its exit code becomes this command's. What follows the command is its own, dashes and all.", `
muster alloc exec -it 8ba85cef /bin/sh
muster alloc exec -task server 8ba85cef ls -l /tmp
echo hello | muster alloc exec -i 8ba85cef cat
muster alloc exec -it -job example /bin/sh`, 2, -1, o.run)
	o.flags(c)
	return e.ofAlloc(c, &o.job)
}

// flags adds the flags that exec in allocations and in jobs have in common.
func (o *allocExecOptions) flags(c *cobra.Command) {
	e := o.env
	c.Annotations = map[string]string{"passthrough": "a"}
	f := c.Flags()
	f.StringVar(&o.task, "task", "", "the task; needed only when there are several")
	f.IntVar(&o.rank, "rank", -1, "as this rank: with its RANK and LOCAL_RANK")
	f.BoolVarP(&o.stdin, "stdin", "i", true, "pass stdin on")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the command a terminal; on by itself when this one has a terminal")
	f.StringVarP(&o.escape, "escape", "e", "~", "accepted for Nomad's scripts")
	f.Lookup("tty").DefValue = "auto"
	c.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("rank") && o.rank < 0 {
			return fmt.Errorf("-rank %d: ranks count from 0", o.rank)
		}
		if !cmd.Flags().Changed("tty") {
			o.tty = e.tty && o.stdin
		}
		return nil
	}
}

func (o *allocExecOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	al, err := o.pickAlloc(ctx, a, args[0], o.job)
	if err != nil {
		return err
	}
	return o.enter(ctx, a, al, args[1:])
}

// enter runs a command in an allocation.
func (o *allocExecOptions) enter(ctx context.Context, a *api, al *wire.Allocation, words []string) error {
	task, err := pickTask(al, o.task)
	if err != nil {
		return err
	}
	if o.tty && !o.stdin {
		return errors.New("-t needs -i: a terminal without input is of no use")
	}
	command, err := json.Marshal(words)
	if err != nil {
		return err
	}
	q := ns(al.Namespace)
	q.Set("task", task)
	q.Set("tty", strconv.FormatBool(o.tty))
	q.Set("command", string(command))
	if o.rank >= 0 {
		q.Set("rank", strconv.Itoa(o.rank))
	}
	ws, err := a.dial(ctx, "/v1/client/allocation/"+al.ID+"/exec", q)
	if err != nil {
		return fmt.Errorf("exec in task %q of %s: %w", task, shortID(al.ID, false), err)
	}
	defer ws.CloseNow()
	code, err := o.session(ctx, ws)
	if err != nil {
		return fmt.Errorf("exec in task %q of %s: %w", task, shortID(al.ID, false), err)
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// session copies the streams until the command has ended, and returns its exit code.
func (o *allocExecOptions) session(ctx context.Context, ws *websocket.Conn) (int, error) {
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	var mu sync.Mutex
	var frames atomic.Int64 // number of frames read
	var reading atomic.Bool // a read is in progress
	send := func(f wire.ExecStreamingInput) error {
		b, err := json.Marshal(f)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		return ws.Write(ctx, websocket.MessageText, b)
	}
	if in, ok := o.in.(*os.File); ok && o.tty && term.IsTerminal(int(in.Fd())) {
		old, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return 0, fmt.Errorf("set the terminal: %w", err)
		}
		defer term.Restore(int(in.Fd()), old)
		var shown [2]int // the size that was sent last
		size := func() {
			if w, h, err := terminalSize(in); err == nil && w > 0 && h > 0 && shown != [2]int{w, h} {
				shown = [2]int{w, h}
				_ = send(wire.ExecStreamingInput{TTYSize: &wire.TerminalSize{Width: w, Height: h}})
			}
		}
		size()
		go resizes(ctx, size)
	}
	go func() {
		t := time.NewTicker(execHeartbeat)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				before := frames.Load()
				if send(wire.ExecStreamingInput{}) != nil {
					return
				}
				pctx, stop := context.WithTimeout(ctx, execSilence)
				err := ws.Ping(pctx)
				stop()
				if err != nil && ctx.Err() == nil && reading.Load() && frames.Load() == before { // but not a terminal that was stopped
					lost(errExecSilence)
					return
				}
			}
		}
	}()
	// This goroutine ends with its input: a read of a terminal cannot be interrupted, and the process ends with run.
	go func() {
		if !o.stdin {
			_ = send(wire.ExecStreamingInput{Stdin: &wire.ExecStreamingIO{Close: true}})
			return
		}
		buf := make([]byte, 16<<10)
		for {
			n, err := o.in.Read(buf)
			if n > 0 {
				if send(wire.ExecStreamingInput{Stdin: &wire.ExecStreamingIO{Data: buf[:n]}}) != nil {
					return
				}
			}
			if err != nil {
				if errors.Is(err, io.EOF) {
					_ = send(wire.ExecStreamingInput{Stdin: &wire.ExecStreamingIO{Close: true}})
				}
				return
			}
		}
	}()
	for {
		reading.Store(true)
		_, b, err := ws.Read(ctx)
		reading.Store(false)
		frames.Add(1)
		if err != nil {
			var ce websocket.CloseError
			if errors.As(err, &ce) && ce.Reason != "" {
				return 0, errors.New(ce.Reason)
			}
			if errors.Is(context.Cause(ctx), errExecSilence) {
				return 0, errExecSilence
			}
			if ctx.Err() != nil {
				return 130, nil
			}
			return 0, fmt.Errorf("the connection ended before the command: %w", err)
		}
		var f wire.ExecStreamingOutput
		if err := json.Unmarshal(b, &f); err != nil {
			return 0, fmt.Errorf("a frame is not understood: %w", err)
		}
		if f.Stdout != nil {
			if _, err := o.out.Write(f.Stdout.Data); err != nil {
				return 0, err
			}
		}
		if f.Stderr != nil {
			if _, err := o.err.Write(f.Stderr.Data); err != nil {
				return 0, err
			}
		}
		if f.Exited {
			if f.Result != nil {
				return f.Result.ExitCode, nil
			}
			return 0, nil
		}
	}
}
