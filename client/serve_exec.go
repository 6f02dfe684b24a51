package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// lines is a writer that queues log lines for one reader.
type lines struct {
	ch      chan []byte
	dropped atomic.Int64
}

// Write implements io.Writer. It never blocks the logger.
func (l *lines) Write(p []byte) (int, error) {
	select {
	case l.ch <- append([]byte(nil), p...):
	default:
		l.dropped.Add(1)
	}
	return len(p), nil
}

func droppedNote(n int64) string {
	return fmt.Sprintf("[monitor] %d lines were dropped: the reader is too slow\n", n)
}

// argsMax limits the words of an exec command.
const argsMax = 1024

// exec runs a command inside a task, with input and output as frames.
func (s service) exec(ctx context.Context, _ *rpc.Call, req *methods.ExecRequest, st *rpc.Stream) error {
	r, err := s.alloc(req.AllocID)
	if err != nil {
		return err
	}
	if len(req.Command) == 0 || req.Command[0] == "" || len(req.Command) > argsMax {
		return structs.Errorf(structs.CodeInvalid, "exec wants a command of 1 to %d words", argsMax)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdin, feed := io.Pipe()
	resize := make(chan driver.TermSize, 4)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { // ends with the stream
		defer wg.Done()
		readExec(st, feed, resize)
		if st.Context().Err() != nil {
			cancel() // the reader is gone: end the command
		}
	}()
	out := &execWriter{st: st}
	var rank *int
	if req.Ranked {
		rank = &req.Rank
	}
	code, err := r.Exec(ctx, req.Task, driver.ExecRequest{
		Rank: rank, Command: req.Command, TTY: req.TTY, Stdin: stdin,
		Stdout: writerFunc(func(p []byte) error { return out.send(methods.ExecFrame{Stdout: p}) }),
		Stderr: writerFunc(func(p []byte) error { return out.send(methods.ExecFrame{Stderr: p}) }),
		Resize: resize,
	})
	stdin.CloseWithError(io.ErrClosedPipe)
	if err != nil {
		var se *structs.Error
		switch {
		case errors.As(err, &se):
			return err
		case errors.Is(err, driver.ErrNotRunning):
			return structs.Errorf(structs.CodeInvalid, "Task not running: it has ended")
		case ctx.Err() != nil:
			return nil
		}
		return structs.Errorf(structs.CodeInvalid, "%v", err)
	}
	_ = out.send(methods.ExecFrame{StdoutClose: true})
	_ = out.send(methods.ExecFrame{StderrClose: true})
	_ = out.send(methods.ExecFrame{Exited: true, ExitCode: code})
	return nil
}

// readExec reads the frames of the reader until it closes its side.
func readExec(st *rpc.Stream, feed *io.PipeWriter, resize chan<- driver.TermSize) {
	defer feed.Close()
	for {
		var f methods.ExecFrame
		if st.RecvMsg(&f) != nil {
			return
		}
		if f.Resize != nil {
			select {
			case resize <- driver.TermSize{Height: f.Resize.Height, Width: f.Resize.Width}:
			default: // a newer size will follow
			}
		}
		if len(f.Stdin) > 0 {
			if _, err := feed.Write(f.Stdin); err != nil {
				continue // the command has ended or closed its input; resizes still matter
			}
		}
		if f.StdinClose {
			feed.Close()
		}
	}
}

// execWriter serializes the frames of two outputs.
type execWriter struct {
	mu sync.Mutex
	st *rpc.Stream
}

func (w *execWriter) send(f methods.ExecFrame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.st.SendMsg(&f)
}

// frameMax keeps a frame well below the transport's limit.
const frameMax = 64 << 10

type writerFunc func(p []byte) error

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		k := min(len(p), frameMax)
		if err := f(p[:k]); err != nil {
			return n, err
		}
		n += k
		p = p[k:]
	}
	return n, nil
}
