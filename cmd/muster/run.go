package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// adhoc is a job built from a command line.
type adhoc struct {
	*env
	name, gpus, driver, queue, dir string
	nodes, ranks, cpu, memory, shm int
	limit                          time.Duration
	user, umask, log, logError     string
	asMe, rdma                     bool
	ulimits                        []string
}

func (o *adhoc) flags(f *pflag.FlagSet) {
	f.StringVar(&o.gpus, "gpus", "", "with a command: GPUs on each node, as 8, H100 or H100:8")
	f.IntVar(&o.nodes, "nodes", 1, "with a command: on how many nodes; several start as a gang")
	f.DurationVar(&o.limit, "time", 0, "with a command: how long it may run")
	f.IntVar(&o.ranks, "ranks", 0, "with a command: start it so many times on each node, as ranks")
	f.IntVar(&o.cpu, "cpu", 100, "with a command: MHz of processor on each node")
	f.IntVar(&o.memory, "memory", 300, "with a command: MiB of memory on each node")
	f.IntVar(&o.shm, "shm", 0, "with a command: MiB of /dev/shm, part of the memory")
	f.StringVar(&o.name, "name", "", "with a command: the job's id; without it one is made up")
	f.StringVar(&o.queue, "queue", "", "with a command: the queue to wait in")
	f.StringVar(&o.driver, "driver", "exec", "with a command: the driver, exec or raw_exec")
	f.StringVar(&o.dir, "chdir", "", "with a command: the directory to begin in, which the nodes must have")
	f.StringVar(&o.user, "user", "", "with a command: whom to run it as; the nodes say who may")
	f.StringVar(&o.umask, "umask", "", "with a command: its umask, in octal")
	f.BoolVar(&o.asMe, "as-me", false, "with a command: run it as you, in this directory and with your umask, unless -user, -chdir or -umask say otherwise")
	f.StringVar(&o.log, "log", "", "with a command: file on the nodes that its output is added to; %j is the job, %t the rank, %N the node")
	f.StringVar(&o.logError, "log-error", "", "with a command: the same for its standard error; without it both go to -log")
	f.BoolVar(&o.rdma, "rdma", false, "with a command: take nodes with RDMA and give it their devices, and memory that may be locked")
	f.StringArrayVar(&o.ulimits, "ulimit", nil, "with a command: a limit such as memlock=unlimited or nofile=1024:65536; may be given again")
}

// job builds the job.
func (o *adhoc) job(words []string) (*wire.Job, error) {
	if o.nodes < 1 || o.ranks < 0 || o.limit < 0 || o.shm < 0 {
		return nil, errors.New("-nodes wants 1 or more; -ranks, -time and -shm want nothing negative")
	}
	if o.name == "" {
		o.name = "run-" + strconv.FormatInt(o.now().UnixNano(), 36)
	}
	res := map[string]any{"CPU": o.cpu, "MemoryMB": o.memory}
	if o.shm > 0 {
		res["ShmMB"] = o.shm
	}
	if o.gpus != "" {
		gpu := map[string]any{}
		for part := range strings.SplitSeq(o.gpus, ":") {
			if n, err := strconv.Atoi(part); err == nil && n > 0 && gpu["Count"] == nil {
				gpu["Count"] = n
			} else if err == nil || gpu["Model"] != nil || part == "" {
				return nil, fmt.Errorf("-gpus %q: want a number, a model, or both, as H100:8", o.gpus)
			} else {
				gpu["Model"] = part
			}
		}
		if gpu["Count"] == nil {
			gpu["Count"] = 1
		}
		res["GPU"] = gpu
	}
	if o.rdma {
		res["RDMA"] = true
	}
	if len(o.ulimits) > 0 {
		limits := map[string]any{}
		for _, l := range o.ulimits {
			name, value, ok := strings.Cut(l, "=")
			if !ok {
				return nil, fmt.Errorf("-ulimit %q: want NAME=LIMIT, as memlock=unlimited", l)
			}
			limits[name] = value
		}
		res["Ulimits"] = limits
	}
	words = slices.Clone(words)
	for i := range words {
		words[i] = taskenv.Verbatim(words[i]) // text between ${ and } belongs to the command itself
	}
	task := map[string]any{"Name": "main", "Driver": o.driver, "Config": map[string]any{"command": words[0], "args": words[1:]}, "Resources": res}
	if err := o.person(task); err != nil {
		return nil, err
	}
	group := map[string]any{
		"Name": "run", "Count": o.nodes, "RestartPolicy": map[string]any{"Attempts": 0, "Mode": "fail"},
		"ReschedulePolicy": map[string]any{"Attempts": 0, "Unlimited": false},
		"Tasks":            []any{task},
	}
	launch := map[string]any{"Mode": "node"}
	if o.ranks > 0 {
		launch = map[string]any{"Mode": "rank", "Ranks": o.ranks}
	}
	group["Launch"] = launch
	if o.nodes > 1 {
		group["Gang"] = map[string]any{}
		group["Constraints"] = []any{map[string]any{"Operand": structs.OperandDistinctHosts}} // distinct nodes, not only places
	}
	job := map[string]any{"ID": o.name, "Name": o.name, "Type": "batch", "TaskGroups": []any{group}}
	if o.namespace != "" {
		job["Namespace"] = o.namespace
	}
	if o.queue != "" {
		job["Queue"] = o.queue
	}
	if o.limit > 0 {
		job["Runtime"] = map[string]any{"Limit": int64(o.limit)}
	}
	b, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	out := &wire.Job{}
	return out, json.Unmarshal(b, out)
}

// person sets the user, directory, umask and log of the task.
func (o *adhoc) person(task map[string]any) error {
	u, dir, umask := o.user, o.dir, o.umask
	if o.asMe {
		if u == "" {
			me, err := user.Current()
			if err != nil {
				return fmt.Errorf("-as-me: %w", err)
			}
			u = me.Username
		}
		if dir == "" {
			wd, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("-as-me: %w", err)
			}
			dir = wd
		}
		if umask == "" {
			mask := syscall.Umask(0o077)
			syscall.Umask(mask)
			umask = fmt.Sprintf("%04o", mask)
		}
	}
	if dir != "" && !filepath.IsAbs(dir) {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return fmt.Errorf("-chdir: %w", err)
		}
		dir = abs
	}
	dir = taskenv.Verbatim(dir)
	for key, v := range map[string]string{"User": u, "WorkDir": dir, "Umask": umask, "LogPath": o.log, "LogErrorPath": o.logError} {
		if v != "" {
			task[key] = v
		}
	}
	return nil
}

// submit registers the job.
func (o *adhoc) submit(ctx context.Context, a *api, job *wire.Job) error {
	var resp wire.JobRegisterResponse
	req := wire.JobRegisterRequest{Job: job, EnforceIndex: true} // it must be new
	if _, err := a.put(ctx, "/v1/jobs", ns(val(job.Namespace)), req, &resp); err != nil {
		return fmt.Errorf("submit job %q: %w", *job.ID, err)
	}
	o.warn(resp.Warnings)
	return nil
}

// newest lists the allocations that have no replacement.
func newest(ctx context.Context, a *api, job *wire.Job) ([]*wire.AllocationListStub, error) {
	var list []*wire.AllocationListStub
	if _, err := a.get(ctx, jobPath(*job.ID, "/allocations"), ns(val(job.Namespace)), &list); err != nil {
		return nil, err
	}
	last := map[string]*wire.AllocationListStub{}
	for _, s := range list {
		if l := last[s.Name]; l == nil || s.CreateIndex > l.CreateIndex {
			last[s.Name] = s
		}
	}
	out := make([]*wire.AllocationListStub, 0, len(last))
	for _, name := range sortedKeys(last) {
		out = append(out, last[name])
	}
	return out, nil
}

func over(s *wire.AllocationListStub) bool {
	return s.ClientStatus == "complete" || s.ClientStatus == "failed" || s.ClientStatus == "lost"
}

// exitOf returns the exit code of an allocation that has ended.
func exitOf(s *wire.AllocationListStub) int {
	if s.ClientStatus == "complete" && s.DesiredStatus != "stop" { // a stopped allocation did not complete by itself
		return 0
	}
	if st := s.TaskStates["main"]; st != nil {
		for i := len(st.Events) - 1; i >= 0; i-- {
			if e := st.Events[i]; e.Type == "Terminated" && e.ExitCode != 0 {
				return e.ExitCode
			}
		}
	}
	if s.ClientStatus == "complete" {
		return 0
	}
	return exitError
}

// endedBy returns what ended a command that did not end by itself: a memory or time limit, or a user who stopped the
// job; "" otherwise.
func endedBy(s *wire.AllocationListStub) string {
	if st := s.TaskStates["main"]; st != nil {
		for _, e := range st.Events {
			if m := e.Details["exit_message"]; e.Type == "Terminated" && e.ExitCode != 0 && m != "" {
				return m
			}
		}
	}
	switch {
	case s.DesiredStatus != "stop" || !over(s):
	case s.ClientStatus == "failed" && s.ClientDescription != "":
		return s.ClientDescription
	case exitOf(s) != 0:
		return "it was stopped: " + cmp.Or(s.DesiredDescription, "a user stopped the job")
	}
	return ""
}

// unstarted returns why an allocation failed without an exit code of its command; "" otherwise.
func unstarted(s *wire.AllocationListStub) string {
	if s.ClientStatus != "failed" && s.ClientStatus != "lost" {
		return ""
	}
	why := cmp.Or(s.ClientDescription, s.ClientStatus)
	if st := s.TaskStates["main"]; st != nil {
		for _, e := range st.Events {
			switch {
			case e.Type == "Terminated" && e.ExitCode != 0:
				return ""
			case e.Type != "Not Restarting" && (e.FailsTask || strings.HasSuffix(e.Type, "Failure")):
				why = cmp.Or(e.DisplayMessage, e.Message, e.Type)
			}
		}
	}
	return why
}

// newRun is `muster run`: it takes a job file as `muster job run` does or, after "--", a command.
func newRun(e *env) *cobra.Command {
	c := newJobRun(e)
	file := c.RunE
	o := &adhoc{env: e}
	o.flags(c.Flags())
	c.Use = "run [options] FILE | -- COMMAND [ARGUMENT...]"
	c.Short = "Run a command on the cluster, or submit a job file"
	c.Long = `With a command after "--": run it on nodes of the cluster as a separate job and print what it writes. Its exit code becomes
this command's (of several nodes that of the first to fail); its standard input is empty. Ctrl-C cancels the job and waits for its
end, a second one does not wait; so does the end of the terminal, unless nohup is in front. When this command is killed or its
machine is gone, the job goes on: muster job logs -f JOB. -output prints the job instead, -detach only submits it.

With a file: submit it, as muster job run does.`
	c.Example = indent(`
muster run -gpus H100:8 -nodes 2 -time 2h -- torchrun train.py
muster run -ranks 4 -- /bin/hostname
muster run -as-me -log /shared/logs/%j-%t.out -nodes 2 -- ./train.sh
muster run example.muster.hcl`)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		at := cmd.ArgsLenAtDash()
		if at < 0 {
			return file(cmd, args)
		}
		if at != 0 || len(args) == 0 || args[0] == "" {
			return errors.New(`run takes a job file, or "--" and a command: muster run -gpus 1 -- python3 train.py`)
		}
		job, err := o.job(args)
		if err != nil {
			return err
		}
		if out, _ := cmd.Flags().GetBool("output"); out {
			return o.json(map[string]any{"Job": job})
		}
		a, err := o.api()
		if err != nil {
			return err
		}
		if err := o.submit(cmd.Context(), a, job); err != nil {
			return err
		}
		if detach, _ := cmd.Flags().GetBool("detach"); detach {
			o.println(*job.ID)
			return nil
		}
		return o.attend(cmd.Context(), a, job)
	}
	return c
}

// newShell is `muster shell`: a terminal on a node of the cluster, until it is closed.
func newShell(e *env) *cobra.Command {
	o := &adhoc{env: e}
	c := e.verb("shell [options] [COMMAND [ARGUMENT...]]", "Open a shell on a node with the requested resources",
		"Take GPUs, processor and memory of a node, open a shell (or a command) there with a terminal, and give them back when it\nends. Its exit code becomes this command's.", `
muster shell -gpus 1
muster shell -gpus H100:2 -time 4h -- /bin/bash -l`, 0, -1, func(ctx context.Context, args []string) error {
			return o.shell(ctx, args)
		})
	o.flags(c.Flags())
	for _, name := range []string{"nodes", "ranks"} {
		_ = c.Flags().MarkHidden(name) // both are 1 here
	}
	return c
}

// The job of a shell lasts as long as the shell: it waits a minute for the user to connect, and then until the user has
// left. When the caller is gone for any reason, the agent ends the shell, and with it the job.
const (
	shellHold  = `f=$MUSTER_TASK_DIR/.shell; i=0; while [ ! -s "$f" ]; do i=$((i+1)); [ $i -le 60 ] || exit 75; sleep 1; done; p=$(cat "$f"); while [ -d /proc/$p ]; do sleep 1; done`
	shellEnter = `echo $$ >"$MUSTER_TASK_DIR/.shell.new" && mv "$MUSTER_TASK_DIR/.shell.new" "$MUSTER_TASK_DIR/.shell" && exec "$@"`
)

func (o *adhoc) shell(ctx context.Context, words []string) error {
	if o.nodes != 1 || o.ranks != 0 {
		return errors.New("a shell is on one node; for several start a job and enter it with  muster job exec -rank N JOB")
	}
	if len(words) == 0 {
		words = []string{"/bin/sh"}
	}
	job, err := o.job([]string{"/bin/sh", "-c", shellHold})
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	sig := catch(ctx)
	defer sig.stop()
	ctx = sig.ctx
	if err := o.submit(ctx, a, job); err != nil {
		return err
	}
	defer o.cancel(a, job)
	w := waiting{adhoc: o, api: a, job: job, since: o.now()}
	for {
		list, err := newest(ctx, a, job)
		if err == nil {
			w.reached()
		} else if ctx.Err() == nil && w.passing(err) {
			list = nil
		}
		switch {
		case ctx.Err() != nil:
			return exitCode(sig.code())
		case err != nil && !w.away:
			return err
		case len(list) > 0 && over(list[0]):
			return fmt.Errorf("the shell's job has ended: %s (muster alloc status %s)", list[0].ClientDescription, shortID(list[0].ID, false))
		case len(list) > 0 && list[0].ClientStatus == "running":
			al, err := a.alloc(ctx, list[0].ID)
			if err != nil {
				return err
			}
			x := &allocExecOptions{env: o.env, task: "main", rank: -1, stdin: true, tty: o.tty}
			return x.enter(ctx, a, al, append([]string{"/bin/sh", "-c", shellEnter, "muster-shell"}, words...))
		}
		if len(list) == 0 {
			w.tell(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollEvery):
		}
	}
}
