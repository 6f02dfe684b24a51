package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// adhoc is a job built from a command line.
type adhoc struct {
	*env
	name, gpus, driver, image, queue, pool, priority, begin, depends, array string
	nodes, ranks, cpu, cores, shm, requeue                                  int
	mem, disk, dir, user, umask, log, logError                              string
	limit                                                                   time.Duration
	asMe, rdma, noEnv, pack, preemptible                                    bool
	ulimits, vars                                                           []string

	gpu       gpuAsk       // of gpus
	bundle    *packed      // with pack
	batch     *batchScript // of sbatch
	title     string       // the job's name where it is not its id
	memory    int          // MiB of mem, or in proportion to the GPUs
	diskMiB   int          // the same of disk; 0 leaves it to the default of groups
	tasks     int          // allocations that the job has: nodes, or indices of the array
	nodesSeen int          // ready nodes of the pool; 0 where they were not read
	blind     bool         // the caller may not read nodes
}

func (o *adhoc) flags(f *pflag.FlagSet) {
	f.StringVar(&o.gpus, "gpus", "", "with a command: GPUs on each node, as 8, H100 or H100:8")
	f.IntVar(&o.nodes, "nodes", 1, "with a command: on how many nodes; several start as a gang")
	f.IntVar(&o.ranks, "ranks", 0, "with a command: start it so many times on each node, as ranks")
	f.StringVar(&o.array, "array", "", "with a command: run it for each index, as 100 or 0-99; 0-99%4 runs at most 4 at a time. The command finds its index in MUSTER_ARRAY_INDEX")
	f.DurationVar(&o.limit, "time", 0, "with a command: how long it may run")
	f.StringVar(&o.mem, "mem", "", fmt.Sprintf("with a command: memory on each node in MiB, or as 64G; without it in proportion to the GPUs, or %d MiB", runMemoryMiB))
	f.StringVar(&o.disk, "disk", "", fmt.Sprintf("with a command: disk for what it writes below its own directories on each node, in MiB, or as 100G; a command that writes more is ended; without it in proportion to the GPUs, or %d MiB", wire.DiskDefaultMiB))
	f.IntVar(&o.cpu, "cpu", 0, fmt.Sprintf("with a command: MHz of processor on each node; without it in proportion to the GPUs, or %d", runCPU))
	f.IntVar(&o.cores, "cores", 0, "with a command: whole cores on each node, for it alone")
	f.IntVar(&o.shm, "shm", 0, "with a command: MiB of /dev/shm, part of the memory")
	f.StringVar(&o.name, "name", "", "with a command: the job's id; without it one is made up")
	f.StringVar(&o.queue, "queue", "", "with a command: the queue to wait in")
	f.StringVar(&o.pool, "pool", "", "with a command: the node pool to run in")
	f.StringVar(&o.priority, "priority", "", "with a command: 1 to 100, or scavenger, low, normal, high or critical")
	f.BoolVar(&o.preemptible, "preemptible", false, "with a command: others may take its GPUs; its work then returns to the queue, as -requeue says")
	f.StringVar(&o.depends, "depends", "", "with a command: jobs to wait for, as JOB or JOB:WHEN with commas between them; WHEN is success, failed, completed, started or checkpointed")
	f.StringVar(&o.begin, "begin", "", "with a command: not before this time, as 2026-12-01T08:00, 08:00, or 2h from now")
	f.IntVar(&o.requeue, "requeue", 0, "with a command: how often it may return to the queue after it was preempted, or lost its node or a GPU; 0: no limit is set")
	f.StringVar(&o.driver, "driver", "", "with a command: the driver, exec, raw_exec or docker; without it exec where nodes have it, else raw_exec")
	f.StringVar(&o.image, "image", "", "with a command: run it in a container of this image")
	f.StringArrayVar(&o.vars, "env", nil, "with a command: a variable of your environment by name, or NAME=VALUE; may be given again. PATH, VIRTUAL_ENV and CONDA_* go along by themselves")
	f.BoolVar(&o.noEnv, "no-env", false, "with a command: no variables go along but those of -env")
	f.StringVar(&o.dir, "dir", "", "with a command: the directory to begin in, which the nodes must have; without it this one where the command names a file in it")
	f.BoolVar(&o.pack, "pack", false, fmt.Sprintf("with a command: send the directory (-dir, or this one) along and begin in it: at most %d MiB packed, without what .musterignore, or else .gitignore, names", structs.BundleMax>>20))
	f.StringVar(&o.user, "user", "", "with a command: whom to run it as; the nodes say who may")
	f.StringVar(&o.umask, "umask", "", "with a command: its umask, in octal")
	f.BoolVar(&o.asMe, "as-me", false, "with a command: run it as you, in this directory and with your umask, unless -user, -dir or -umask say otherwise")
	f.StringVar(&o.log, "log", "", "with a command: file on the nodes that its output is added to; %j is the job, %t the rank, %N the node")
	f.StringVar(&o.logError, "log-error", "", "with a command: the same for its standard error; without it both go to -log")
	f.BoolVar(&o.rdma, "rdma", false, "with a command: take nodes with RDMA and give it their devices, and memory that may be locked")
	f.StringArrayVar(&o.ulimits, "ulimit", nil, "with a command: a limit such as memlock=unlimited or nofile=1024:65536; may be given again")
}

// prepare checks the flags, asks the cluster for what they leave open, and makes the job. a is nil where no agent is
// needed.
func (o *adhoc) prepare(ctx context.Context, a *api, words []string) (string, *wire.Job, error) {
	if err := o.check(); err != nil {
		return "", nil, err
	}
	if err := o.place(words); err != nil {
		return "", nil, err
	}
	if o.pack {
		var err error
		if o.bundle, err = pack(o.dir, structs.BundleMax); err != nil {
			return "", nil, err
		}
	}
	if err := o.suit(ctx, a, words); err != nil {
		return "", nil, err
	}
	return o.job(words)
}

// deliver sends the directory that goes along, if there is one.
func (o *adhoc) deliver(ctx context.Context, a *api) error {
	if o.bundle == nil {
		return nil
	}
	return o.bundle.send(ctx, o, a)
}

// submit registers the job.
func (o *adhoc) submit(ctx context.Context, a *api, src string, job *wire.Job) error {
	if err := o.deliver(ctx, a); err != nil {
		return err
	}
	var resp wire.JobRegisterResponse
	req := wire.JobRegisterRequest{Job: job, EnforceIndex: true, // it must be new
		Submission: &wire.JobSubmission{Source: src, Format: "hcl2"}}
	if _, err := a.put(ctx, "/v1/jobs", ns(val(job.Namespace)), req, &resp); err != nil {
		var answer *apiError
		if errors.As(err, &answer) && answer.Status == http.StatusConflict && strings.Contains(answer.Msg, "already exists") {
			return fmt.Errorf("there is a job %q already (muster job status %s): give -name another name, or leave it out", *job.ID, word(*job.ID))
		}
		return fmt.Errorf("submit job %q: %w", *job.ID, err)
	}
	o.warn(resp.Warnings)
	return nil
}

// show prints the job file, and what the servers warn of, if they answer: a GPU model that no node has, for example.
func (o *adhoc) show(ctx context.Context, a *api, src string, job *wire.Job) {
	o.printf("%s", src)
	var resp wire.JobValidateResponse
	if _, err := a.put(ctx, "/v1/validate/job", nil, wire.JobValidateRequest{Job: job}, &resp); err == nil {
		o.warn(resp.Warnings)
	}
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

// endedBy returns what ended a command that did not end by itself: a limit on memory, disk, GPU memory or time, or a user
// who stopped the job; "" otherwise.
func endedBy(s *wire.AllocationListStub) string {
	if st := s.TaskStates["main"]; st != nil {
		for _, e := range st.Events {
			switch m := e.Details["exit_message"]; {
			case e.FailsTask && e.Details["disk_limit"] != "":
				return cmp.Or(e.DisplayMessage, e.Message) + " (-disk 100G asks for so much)"
			case e.Type == "Not Restarting": // it says only that this end is final
			case e.FailsTask && e.Type != "Terminated": // the agent ended it
				return cmp.Or(e.Details["kill_reason"], e.DisplayMessage, e.Message, e.Type)
			case e.Type == "Terminated" && e.ExitCode != 0 && m != "":
				if e.Details["oom_killed"] == "true" {
					m += " (-mem 64G asks for so much)"
				}
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
	c.Flags().Lookup("output").Usage = "submit nothing and print the job: of a command as a job file, of a file as JSON"
	c.Use = "run [options] FILE | -- COMMAND [ARGUMENT...]"
	c.Short = "Run a command on the cluster, or submit a job file"
	c.Long = `With a command after "--": run it on nodes of the cluster as a separate job and print what it writes. Its exit code becomes
this command's (of several nodes that of the first to fail); its standard input is empty. Ctrl-C cancels the job and waits for its
end, a second one does not wait. SIGTERM and the end of the terminal (unless nohup is in front) cancel the job and do not wait. When
this command is killed by SIGKILL or its machine is gone, the job goes on: muster job logs -f JOB. -output prints the job file
instead, -detach only submits it.

What you leave open follows from the cluster: the driver is one that nodes have; with -gpus memory, cores and disk come in proportion.
A command that no node could ever run is refused at once, unless -wait says to wait for other nodes. PATH, VIRTUAL_ENV and CONDA_*
of your environment go along, others with -env; secrets belong in variables (muster var put). -dir is a directory that the nodes
share, and the default is this directory where the command names a file in it. With -pack the directory is sent along instead:
each node gets a copy of its own, without what .musterignore (or else .gitignore) names; what the job writes there is fetched
with muster alloc cp. The servers keep it as long as a job uses it, and for a day before.

With a file: submit it, as muster job run does.`
	c.Example = indent(`
muster run -gpus H100:8 -nodes 2 -time 2h -- torchrun train.py
muster run -ranks 4 -- /bin/hostname
muster run -pack -gpus 1 -- python3 train.py
muster run -array 0-99%4 -mem 4G -depends prep -- ./sweep.sh
muster run -as-me -log /shared/logs/%j-%t.out -nodes 2 -- ./train.sh
muster run example.muster.hcl`)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		at := cmd.ArgsLenAtDash()
		if at < 0 {
			if names := commandFlags(cmd); len(names) > 0 {
				return fmt.Errorf(`%s is for a command after "--": a job file says it itself`, strings.Join(names, ", "))
			}
			return file(cmd, args)
		}
		if at != 0 || len(args) == 0 || args[0] == "" {
			return errors.New(`run takes a job file, or "--" and a command: muster run -gpus 1 -- python3 train.py`)
		}
		a, err := o.api()
		if err != nil {
			return err
		}
		o.warnDirectives(slices.Clone(args))
		src, job, err := o.prepare(cmd.Context(), a, args)
		if err != nil {
			return err
		}
		if out, _ := cmd.Flags().GetBool("output"); out {
			o.show(cmd.Context(), a, src, job)
			return o.deliver(cmd.Context(), a)
		}
		if wait, _ := cmd.Flags().GetBool("wait"); !wait {
			if err := o.possible(cmd.Context(), a, job); err != nil {
				return fmt.Errorf("%w\n(-wait submits it all the same, to wait for other nodes)", err)
			}
		}
		if err := o.submit(cmd.Context(), a, src, job); err != nil {
			if cmd.Context().Err() != nil && !cmd.Flags().Changed("name") { // it may have arrived
				o.cancel(a, job)
			}
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
	for _, name := range []string{"nodes", "ranks", "array"} {
		_ = c.Flags().MarkHidden(name) // a shell is one process
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
	if o.nodes != 1 || o.ranks != 0 || o.array != "" {
		return errors.New("a shell is on one node; for several start a job and enter it with  muster job exec -rank N JOB")
	}
	if len(words) == 0 {
		words = []string{"/bin/sh"}
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	src, job, err := o.prepare(ctx, a, []string{"/bin/sh", "-c", shellHold})
	if err != nil {
		return err
	}
	if err := o.possible(ctx, a, job); err != nil {
		return err
	}
	sig := catch(ctx)
	defer sig.stop()
	ctx = sig.ctx
	if err := o.submit(ctx, a, src, job); err != nil {
		return err
	}
	defer o.cancel(a, job)
	w := waiting{adhoc: o, api: a, job: job, since: o.now(), bound: true}
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
