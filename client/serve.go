package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/logfile"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Resolve finds the client that a server addresses: the one that holds the allocation or, if alloc is zero, the node.
type Resolve func(alloc structs.AllocID, node structs.NodeID) (*Client, error)

// Only resolves to one client and refuses calls for another node.
func Only(c *Client) Resolve {
	return func(_ structs.AllocID, node structs.NodeID) (*Client, error) {
		if !node.IsZero() && node != c.ID() {
			return nil, structs.Errorf(structs.CodeNotFound, "this is node %s, not %s", c.ID().Short(), node.Short())
		}
		return c, nil
	}
}

// service answers the calls that servers make to nodes.
type service struct{ find Resolve }

// Serve registers every method that nodes answer.
func Serve(reg *rpc.Registry, find Resolve) {
	s := service{find}
	rpc.Handle(reg, methods.ClientFSList, s.fsList)
	rpc.Handle(reg, methods.ClientFSStat, s.fsStat)
	rpc.HandleStream(reg, methods.ClientFSStream, s.fsStream)
	rpc.HandleStream(reg, methods.ClientLogs, s.logs)
	rpc.HandleStream(reg, methods.ClientExec, s.exec)
	rpc.HandleStream(reg, methods.ClientForward, s.forward)
	rpc.Handle(reg, methods.ClientStats, s.stats)
	rpc.Handle(reg, methods.ClientHostStats, s.hostStats)
	rpc.Handle(reg, methods.ClientRestart, s.restart)
	rpc.Handle(reg, methods.ClientSignal, s.signal)
	rpc.Handle(reg, methods.ClientCheckpoint, s.checkpoint)
	rpc.Handle(reg, methods.ClientGPURelease, s.releaseGPUs)
	rpc.Handle(reg, methods.ClientGC, s.collect)
	rpc.Handle(reg, methods.ClientGCAll, s.collectAll)
	rpc.Handle(reg, methods.ClientChecks, s.checks)
	rpc.Handle(reg, methods.ClientMetaRead, s.metaRead)
	rpc.Handle(reg, methods.ClientMetaApply, s.metaApply)
	rpc.HandleStream(reg, methods.ClientMonitor, s.monitor)
}

// alloc returns an allocation's runner.
func (s service) alloc(id structs.AllocID) (*runner.Runner, error) {
	c, err := s.find(id, structs.NodeID{})
	if err != nil {
		return nil, err
	}
	r := c.Alloc(id)
	if r == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "Unknown allocation %q: it is not, or no longer, on node %s", id, c.ID().Short())
	}
	return r, nil
}

func (s service) dir(id structs.AllocID) (*allocdir.Dir, *runner.Runner, error) {
	r, err := s.alloc(id)
	if err != nil {
		return nil, nil, err
	}
	if r.Dir() == nil {
		return nil, nil, structs.Errorf(structs.CodeUnsupported, "simulated node: allocation %s has no files", id.Short())
	}
	return r.Dir(), r, nil
}

func info(i allocdir.Info) methods.FileInfo {
	return methods.FileInfo{
		Name: i.Name(), IsDir: i.IsDir(), Size: i.Size(), Mode: i.Mode().String(),
		ModTime: structs.LogTimeOf(i.ModTime()), ContentType: i.ContentType,
	}
}

func (s service) fsList(_ context.Context, _ *rpc.Call, req *methods.FSRequest) (*methods.FSListResponse, error) {
	d, _, err := s.dir(req.AllocID)
	if err != nil {
		return nil, err
	}
	list, err := d.List(req.Path)
	if err != nil {
		return nil, err
	}
	resp := &methods.FSListResponse{Files: make([]methods.FileInfo, len(list))}
	for i := range list {
		resp.Files[i] = info(list[i])
	}
	return resp, nil
}

func (s service) fsStat(_ context.Context, _ *rpc.Call, req *methods.FSRequest) (*methods.FSStatResponse, error) {
	d, _, err := s.dir(req.AllocID)
	if err != nil {
		return nil, err
	}
	i, err := d.Stat(req.Path)
	if err != nil {
		return nil, err
	}
	return &methods.FSStatResponse{Info: info(i)}, nil
}

// heartbeatEvery is the interval of heartbeat frames on a stream without data.
const heartbeatEvery = 10 * time.Second

// follow sends the frames that read emits, and heartbeats while there are none.
func follow(ctx context.Context, st *rpc.Stream, beats bool, read func(ctx context.Context, emit func(logfile.Frame) error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if beats {
		done := make(chan struct{})
		defer func() { cancel(); <-done }()
		go func() {
			defer close(done)
			t := time.NewTicker(heartbeatEvery)
			defer t.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-t.C:
					if st.SendMsg(&methods.FSFrame{}) != nil {
						cancel()
						return
					}
				}
			}
		}()
	}
	err := read(ctx, func(f logfile.Frame) error {
		return st.SendMsg(&methods.FSFrame{File: f.File, Offset: f.Offset, Data: f.Data, Event: f.Event, Time: structs.LogTime(f.Time)})
	})
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil // the reader has closed the stream
	case errors.Is(err, fs.ErrNotExist):
		return structs.Errorf(structs.CodeNotFound, "there is no such file or log yet")
	case errors.Is(err, taskfs.ErrNotRegular):
		return structs.Errorf(structs.CodeInvalid, "only plain files can be read")
	}
	return err
}

func (s service) fsStream(ctx context.Context, _ *rpc.Call, req *methods.FSStreamRequest, st *rpc.Stream) error {
	d, _, err := s.dir(req.AllocID)
	if err != nil {
		return err
	}
	f, err := d.OpenFile(req.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	src := logfile.Source{File: f, Name: allocdir.Clean(req.Path), Leads: func() bool { return d.Leads(req.Path, f) }}
	o := logfile.Options{Origin: req.Origin, Offset: req.Offset, Follow: req.Follow, Limit: req.Limit}
	return follow(ctx, st, req.Follow, func(ctx context.Context, emit func(logfile.Frame) error) error {
		return badOptions(logfile.File(ctx, src, o, emit))
	})
}

func (s service) logs(ctx context.Context, _ *rpc.Call, req *methods.LogsRequest, st *rpc.Stream) error {
	d, r, err := s.dir(req.AllocID)
	if err != nil {
		return err
	}
	done, err := r.TaskDone(req.Task)
	if err != nil {
		return err
	}
	task := req.Task
	if task == "" {
		task = r.TaskNames()[0]
	}
	if req.Type != "stdout" && req.Type != "stderr" {
		return structs.Errorf(structs.CodeInvalid, "log type %q: want stdout or stderr", req.Type)
	}
	dir, err := taskfs.Open(d.LogDir())
	if err != nil {
		return structs.Errorf(structs.CodeNotFound, "allocation %s has no logs yet", req.AllocID.Short())
	}
	defer dir.Close()
	o := logfile.Options{Origin: req.Origin, Offset: req.Offset, Follow: req.Follow, Done: done, Times: req.Times}
	if req.Since > 0 {
		o.Since = req.Since.Time()
	}
	return follow(ctx, st, req.Follow, func(ctx context.Context, emit func(logfile.Frame) error) error {
		err := logfile.Log(ctx, dir, task+"."+req.Type, o, emit)
		if errors.Is(err, fs.ErrNotExist) && r.TaskBegan(task) {
			return nil // no output yet: the file is created with the first byte
		}
		return badOptions(err)
	})
}

// badOptions marks an error about the request as CodeInvalid, so that the caller sees its text.
func badOptions(err error) error {
	var se *structs.Error
	var pe *fs.PathError
	if err == nil || errors.As(err, &se) || errors.As(err, &pe) || errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, taskfs.ErrNotRegular) {
		return err
	}
	return structs.Errorf(structs.CodeInvalid, "%v", err)
}

func (s service) restart(ctx context.Context, _ *rpc.Call, req *methods.AllocRestartRequest) (*methods.WriteResponse, error) {
	r, err := s.alloc(req.AllocID)
	if err != nil {
		return nil, err
	}
	return nil, r.Restart(ctx, req.Task, req.All)
}

func (s service) signal(ctx context.Context, _ *rpc.Call, req *methods.AllocSignalRequest) (*methods.WriteResponse, error) {
	r, err := s.alloc(req.AllocID)
	if err != nil {
		return nil, err
	}
	return nil, r.Signal(ctx, req.Task, req.Signal)
}

// checkpointPatience limits how long a call waits for a command or request that saves a task's state.
const checkpointPatience = 5 * time.Second

func (s service) checkpoint(ctx context.Context, _ *rpc.Call, req *methods.AllocNodeRequest) (*methods.CheckpointNotice, error) {
	r, err := s.alloc(req.AllocID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, checkpointPatience)
	defer cancel()
	n, err := r.Save(ctx)
	return (*methods.CheckpointNotice)(n), err
}

func (s service) collect(_ context.Context, _ *rpc.Call, req *methods.AllocNodeRequest) (*methods.WriteResponse, error) {
	c, err := s.find(req.AllocID, req.NodeID)
	if err != nil {
		return nil, err
	}
	if req.AllocID.IsZero() {
		return nil, structs.Errorf(structs.CodeInvalid, "which allocation shall be collected is missing")
	}
	return nil, c.Collect(req.AllocID)
}

func (s service) collectAll(_ context.Context, _ *rpc.Call, req *methods.AllocNodeRequest) (*methods.WriteResponse, error) {
	c, err := s.find(structs.AllocID{}, req.NodeID)
	if err != nil {
		return nil, err
	}
	return nil, c.Collect(structs.AllocID{})
}

func (s service) checks(_ context.Context, _ *rpc.Call, req *methods.AllocNodeRequest) (*methods.ChecksResponse, error) {
	r, err := s.alloc(req.AllocID)
	if err != nil {
		return nil, err
	}
	resp := &methods.ChecksResponse{}
	for _, c := range r.Checks() {
		resp.Checks = append(resp.Checks, methods.CheckStatus(c))
	}
	return resp, nil
}

func (s service) metaRead(_ context.Context, _ *rpc.Call, req *methods.AllocNodeRequest) (*methods.NodeMetaResponse, error) {
	c, err := s.find(req.AllocID, req.NodeID)
	if err != nil {
		return nil, err
	}
	return c.metadata(), nil
}

func (s service) metaApply(_ context.Context, _ *rpc.Call, req *methods.NodeMetaRequest) (*methods.NodeMetaResponse, error) {
	c, err := s.find(structs.AllocID{}, req.NodeID)
	if err != nil {
		return nil, err
	}
	if err := c.setMeta(req.Meta); err != nil {
		return nil, err
	}
	return c.metadata(), nil
}

func (c *Client) metadata() *methods.NodeMetaResponse {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	static := maps.Clone(c.cfg.Node.Meta)
	if static == nil {
		static = map[string]string{}
	}
	return &methods.NodeMetaResponse{Meta: maps.Clone(n.node.Meta), Dynamic: maps.Clone(n.dynamic), Static: static}
}

// monitorBuffer is how many lines wait for a slow reader. Further lines are dropped, and their number is reported.
const monitorBuffer = 512

func (s service) monitor(ctx context.Context, _ *rpc.Call, req *methods.MonitorRequest, st *rpc.Stream) error {
	c, err := s.find(structs.AllocID{}, req.NodeID)
	if err != nil {
		return err
	}
	if c.cfg.Monitor == nil {
		return structs.Errorf(structs.CodeUnsupported, "this agent's log cannot be followed")
	}
	return Monitor(ctx, c.cfg.Monitor, req, st)
}

// Monitor streams log lines, one frame each, until the reader closes the stream.
func Monitor(ctx context.Context, log hclog.InterceptLogger, req *methods.MonitorRequest, st *rpc.Stream) error {
	level := hclog.Info
	if req.Level != "" {
		if level = hclog.LevelFromString(req.Level); level == hclog.NoLevel {
			return structs.Errorf(structs.CodeInvalid, "Unknown log level: %.40q; levels are trace, debug, info, warn, error", req.Level)
		}
	}
	w := &lines{ch: make(chan []byte, monitorBuffer)}
	sink := hclog.NewSinkAdapter(&hclog.LoggerOptions{Level: level, Output: w, JSONFormat: req.JSON, IncludeLocation: req.IncludeLocation})
	log.RegisterSink(sink)
	defer log.DeregisterSink(sink)
	if st.SendMsg(&methods.FSFrame{}) != nil { // confirms that the log is being watched
		return nil
	}
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	for {
		frame := methods.FSFrame{}
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		case line := <-w.ch:
			frame.Data = line
		}
		if n := w.dropped.Swap(0); n > 0 {
			note := methods.FSFrame{Data: []byte(droppedNote(n))}
			if st.SendMsg(&note) != nil {
				return nil
			}
		}
		if st.SendMsg(&frame) != nil {
			return nil
		}
	}
}
