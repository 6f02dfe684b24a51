package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type rshOptions struct {
	allocExecOptions
	wait bool
}

func newRsh(e *env) *cobra.Command {
	o := &rshOptions{allocExecOptions: allocExecOptions{env: e, rank: -1}}
	c := e.verb("rsh [options] HOST COMMAND [ARGUMENT...]", "Run a command on another node of the job that this runs in",
		`Run a command in this job's own allocation on another node, for launchers that expect a remote shell: mpirun, deepspeed,
pdsh. HOST is an address or a name of the gang's nodes, or a node rank. It works inside a task of a gang only,
through the task's own socket to its agent, and needs no token. As with rsh the words are put together and read by
/bin/sh on the other side. With launch = { compat = ["mpi"] } mpirun finds it by itself; elsewhere it is named with
-mca plm_rsh_agent "muster rsh". With -wait the members that only lend their node wait until node rank 0 has ended.`, `
muster rsh 10.0.0.2 nvidia-smi -L
muster rsh -wait`, 0, -1, o.run)
	c.Annotations = map[string]string{"passthrough": "a"}
	f := c.Flags()
	f.StringVar(&o.task, "task", os.Getenv("MUSTER_TASK_NAME"), "the task to enter; the one of the same name")
	f.Lookup("task").DefValue = ""
	f.BoolVar(&o.wait, "wait", false, "run nothing: wait until node rank 0 has ended")
	var ignored bool
	for _, name := range []string{"x", "n", "q"} {
		f.BoolVarP(&ignored, "ssh-"+name, name, false, "accepted for launchers that mean ssh")
	}
	var user string
	f.StringVarP(&user, "login", "l", "", "accepted for launchers that mean ssh: it is always the task's user")
	return c
}

func (o *rshOptions) run(ctx context.Context, args []string) error {
	switch {
	case o.wait && len(args) > 0:
		return errors.New("-wait takes no arguments")
	case !o.wait && len(args) < 2 && os.Getenv("MUSTER_GANG_ID") != "":
		return errors.New("rsh takes a host and a command; there are no interactive sessions")
	}
	a, ms, err := o.gang(ctx)
	if err != nil {
		return err
	}
	if o.wait {
		return o.waitFor(ctx, a, ms[0].id)
	}
	id := ""
	for _, m := range ms {
		if m.name == args[0] || m.address == args[0] || strconv.Itoa(m.member) == args[0] {
			if id = m.id; id == os.Getenv("MUSTER_ALLOC_ID") {
				break // of several on a node the task's own
			}
		}
	}
	if id == "" {
		return fmt.Errorf("no member of the gang is on %q; its hosts are in $MUSTER_HOSTFILE", args[0])
	}
	al, err := a.member(ctx, id)
	if err != nil {
		return err
	}
	o.stdin = true
	return o.enter(ctx, a, al, []string{"/bin/sh", "-c", strings.Join(args[1:], " ")})
}

// gang returns the members of the gang of the task that this runs in, by rank. It asks through the task's own socket.
func (o *rshOptions) gang(ctx context.Context) (*api, []ranked, error) {
	job := os.Getenv("MUSTER_JOB_ID")
	if job == "" || os.Getenv("MUSTER_GANG_ID") == "" {
		return nil, nil, errors.New("this works inside a task of a gang only (MUSTER_GANG_ID is not set); to enter any job:  muster job exec -rank N JOB COMMAND")
	}
	if sock := os.Getenv("MUSTER_UNIX_ADDR"); o.token == "" && sock != "" {
		if _, err := os.Stat(strings.TrimPrefix(sock, "unix://")); err == nil {
			o.addr = sock // the agent knows which task this socket belongs to
		}
	}
	a, err := o.api()
	if err != nil {
		return nil, nil, err
	}
	a.namespace = os.Getenv("MUSTER_NAMESPACE")
	ms, err := o.members(ctx, a, &wire.JobListStub{ID: job, Namespace: a.namespace}, os.Getenv("MUSTER_GROUP_NAME"))
	return a, ms, err
}

// member reads an allocation of the task's gang by its full id: a task may not search other allocations.
func (a *api) member(ctx context.Context, id string) (*wire.Allocation, error) {
	var out wire.Allocation
	if _, err := a.get(ctx, "/v1/allocation/"+id, ns(a.namespace), &out); err != nil {
		return nil, fmt.Errorf("read allocation %s: %w", id, err)
	}
	return &out, nil
}

// waitFor returns when an allocation has ended.
func (o *rshOptions) waitFor(ctx context.Context, a *api, id string) error {
	failures := 0
	for {
		al, err := a.member(ctx, id)
		switch {
		case ctx.Err() != nil:
			return exitCode(130)
		case err != nil:
			if failures++; failures > 60 {
				return err
			}
		default:
			failures = 0
			switch al.ClientStatus {
			case "complete", "failed", "lost":
				return nil
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
