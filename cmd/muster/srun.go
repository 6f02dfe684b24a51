package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
)

func newSrun(e *env) *cobra.Command {
	c := e.verb("srun [options] COMMAND [ARGUMENT...]", "Run a command as Slurm's srun does",
		`Inside a script of muster sbatch: start a command on the nodes of the job, once for each of the job's tasks or of -n, --ntasks-per-node, -N
and -w, and wait until all have ended. Each finds SLURM_PROCID, SLURM_LOCALID and SLURM_NODEID, what the script exported, and this
directory where its node has it. The exit code is the highest of all. -l puts the number of the task in front of each line. Their
standard input is empty.
Anywhere else: run a command on the cluster and print what it writes, as muster run does, with the options of Slurm; --pty opens a
terminal, as muster shell does.`, `
muster srun -N2 --gpus-per-node=8 -t 1:00:00 torchrun train.py
muster srun -n 4 -l hostname
muster srun --gpus 1 --pty /bin/bash`, 0, -1, nil)
	c.DisableFlagParsing = true
	c.RunE = func(cmd *cobra.Command, args []string) error {
		options, words, err := e.slurmLine(cmd, args)
		if err != nil || words == nil && options == nil {
			return err
		}
		if os.Getenv("MUSTER_STEP_ENV") != "" {
			o := &rshOptions{allocExecOptions: allocExecOptions{env: e, rank: -1, task: os.Getenv("MUSTER_TASK_NAME")}}
			return o.step(cmd.Context(), options, words)
		}
		return e.srunOutside(cmd.Context(), options, words)
	}
	return c
}

// srunOutside runs a command as muster run or muster shell does.
func (e *env) srunOutside(ctx context.Context, options []slurmOption, words []string) error {
	ask, err := askSlurm(options)
	if err != nil {
		return err
	}
	if len(ask.left) > 0 && !has(ask.given, "quiet") {
		e.hint("Nothing stands for %s: left out", strings.Join(ask.left, ", "))
	}
	pty := has(ask.given, "pty")
	switch {
	case len(words) == 0:
		return errors.New("srun takes a command: muster srun -N 2 hostname")
	case pty && (ask.nodes > 1 || ask.perNode > 1):
		return errors.New("--pty opens one terminal, on one node: leave out -N and -n")
	}
	line := []string{"muster", map[bool]string{true: "shell", false: "run"}[pty]}
	if ask.name != "" {
		ask.run = append(ask.run, [2]string{"name", ask.name})
	}
	if !pty && ask.perNode > 1 {
		ask.run = append(ask.run, [2]string{"ranks", strconv.Itoa(ask.perNode)})
	}
	if has(ask.given, "as-me") {
		ask.run = append(ask.run, [2]string{"as-me", "true"})
	}
	if has(ask.given, "pack") {
		ask.run = append(ask.run, [2]string{"pack", "true"})
	}
	for _, r := range ask.run {
		line = append(line, "-"+r[0]+"="+r[1])
	}
	if code := e.instead(ctx, append(append(line, "--"), words...)); code != exitOK {
		return exitCode(code)
	}
	return nil
}

// stepTask is a process of a step.
type stepTask struct {
	member           ranked
	task, node, own  int // the number of the task, of its node among those of the step, and of the task on that node
	tasks, nodes, on int // how many there are of the step, and on that node
}

// step runs a command on nodes of the job in which srun was called.
func (o *rshOptions) step(ctx context.Context, options []slurmOption, words []string) error {
	if len(words) == 0 {
		return errors.New("srun takes a command")
	}
	inherited := os.Getenv("SLURM_GPUS_PER_TASK")
	ask, err := askSlurm(options)
	if err != nil {
		return err
	}
	if len(ask.left) > 0 && !has(ask.given, "quiet") {
		o.hint("Nothing stands for %s: left out", strings.Join(ask.left, ", "))
	}
	if has(ask.given, "gpus-per-task") {
		inherited = strconv.Itoa(ask.gpusPerTask)
	}
	a, ms, err := o.gang(ctx)
	if err != nil {
		return err
	}
	tasks, err := stepTasks(ms, ask)
	if err != nil {
		return err
	}
	changed, err := exported(os.Getenv("MUSTER_STEP_ENV"))
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	var mu sync.Mutex // of the output
	codes := make([]int, len(tasks))
	var all sync.WaitGroup
	for i, p := range tasks {
		all.Go(func() {
			out, errw := &lineWriter{mu: &mu, w: o.out}, &lineWriter{mu: &mu, w: o.err}
			if has(ask.given, "label") {
				label := strconv.Itoa(p.task) + ": "
				out.w, errw.w = &labelWriter{w: o.out, label: label}, &labelWriter{w: o.err, label: label}
			}
			codes[i] = o.start(ctx, a, p, p.command(dir, inherited, changed, words), out, errw)
			if codes[i] != 0 {
				if len(errw.buf) > 0 {
					fmt.Fprintln(errw)
				}
				fmt.Fprintf(errw, "srun: error: %s: task %d: Exited with exit code %d\n", p.member.name, p.task, codes[i])
			}
			out.flush()
			errw.flush()
		})
	}
	all.Wait()
	if worst := slices.Max(codes); worst != 0 {
		return exitCode(worst)
	}
	return nil
}

// stepTasks spreads the tasks of a step over members of the gang, in blocks.
func stepTasks(ms []ranked, ask *slurmAsk) ([]stepTask, error) {
	if v := ask.given["nodelist"]; v != "" {
		var chosen []ranked
		for name := range strings.SplitSeq(v, ",") {
			at := slices.IndexFunc(ms, func(m ranked) bool { return m.name == name || m.address == name })
			if at < 0 {
				return nil, fmt.Errorf("-w %s: the job has no such node; it has %s", name, os.Getenv("SLURM_JOB_NODELIST"))
			}
			chosen = append(chosen, ms[at])
		}
		ms = chosen
	}
	tasks := ask.tasks
	perNode := ask.perNode
	switch counted, spread := has(ask.given, "ntasks") || has(ask.given, "ntasks-per-node"), has(ask.given, "nodes"); {
	case spread && ask.nodes > len(ms):
		return nil, fmt.Errorf("-N %d: there are %d", ask.nodes, len(ms))
	case counted && spread:
		ms = ms[:ask.nodes]
	case counted:
		if !has(ask.given, "ntasks") {
			tasks = perNode * len(ms)
		} else if !has(ask.given, "ntasks-per-node") {
			ms = ms[:min(len(ms), tasks)]
			perNode = (tasks + len(ms) - 1) / len(ms)
		}
	default: // as many as the job has on each node
		if perNode, _ = strconv.Atoi(os.Getenv("SLURM_NTASKS_PER_NODE")); perNode < 1 {
			perNode = 1
		}
		if spread {
			ms = ms[:ask.nodes]
		}
		tasks = perNode * len(ms)
		if n, err := strconv.Atoi(os.Getenv("SLURM_NTASKS")); err == nil && !spread && ask.given["nodelist"] == "" {
			tasks = n
		}
	}
	if tasks > perNode*len(ms) {
		return nil, fmt.Errorf("%d tasks do not fit: %d on each of %d nodes", tasks, perNode, len(ms))
	}
	out := make([]stepTask, tasks)
	// The first tasks%len(ms) nodes have one more.
	n := 0
	for k, m := range ms {
		on := tasks / len(ms)
		if k < tasks%len(ms) {
			on++
		}
		for i := range on {
			out[n] = stepTask{m, n, k, i, tasks, len(ms), on}
			n++
		}
	}
	return out, nil
}

// stepShell begins in the directory of srun where the node has it, and shows a task its own GPUs: the arguments are the directory, the number of
// GPUs of a task or "", the number of the task on its node, and the command.
const stepShell = `cd "$1" 2>/dev/null
if [ -n "$2" ] && [ -n "$CUDA_VISIBLE_DEVICES" ]; then
  CUDA_VISIBLE_DEVICES=$(echo "$CUDA_VISIBLE_DEVICES" | cut -d, -f $(($2*$3+1))-$(($2*$3+$2))); export CUDA_VISIBLE_DEVICES
fi
shift 3; exec "$@"`

// command is what starts the task.
func (p *stepTask) command(dir, gpus string, exported, words []string) []string {
	out := append([]string{"/bin/sh", "-c", stepShell, "srun", dir, gpus, strconv.Itoa(p.own), "env"}, exported...)
	for _, v := range []struct {
		name string
		n    int
	}{{"PROCID", p.task}, {"LOCALID", p.own}, {"NODEID", p.node}, {"NTASKS", p.tasks}, {"NPROCS", p.tasks}, {"NNODES", p.nodes}, {"STEP_NUM_TASKS", p.tasks}, {"STEP_TASKS_PER_NODE", p.on}} {
		out = append(out, "SLURM_"+v.name+"="+strconv.Itoa(v.n))
	}
	return append(out, words...)
}

// start runs a task to its end, here or on another node, and returns its exit code.
func (o *rshOptions) start(ctx context.Context, a *api, p stepTask, command []string, out, errw io.Writer) int {
	if p.member.id == os.Getenv("MUSTER_ALLOC_ID") {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Stdout, cmd.Stderr = out, errw
		err := cmd.Run()
		var ended *exec.ExitError
		switch {
		case errors.As(err, &ended):
			if c := ended.ExitCode(); c >= 0 {
				return c
			}
			return exitError
		case err != nil:
			fmt.Fprintf(errw, "srun: %v\n", err)
			return exitError
		}
		return 0
	}
	streams := *o.env
	streams.out, streams.err = out, errw
	in := allocExecOptions{env: &streams, rank: -1, task: o.task}
	al, err := a.member(ctx, p.member.id)
	if err == nil {
		err = in.enter(ctx, a, al, command)
	}
	var code exitCode
	switch {
	case errors.As(err, &code):
		return int(code)
	case err != nil:
		fmt.Fprintf(errw, "srun: %v\n", err)
		return exitError
	}
	return 0
}

// notExported are the beginnings of variables that differ from node to node.
var notExported = []string{"MUSTER_", "NOMAD_", "SLURM_PROCID=", "SLURM_LOCALID=", "SLURM_NODEID=", "PWD=", "OLDPWD=", "SHLVL=", "_="}

// exported returns the variables that the script changed since it began: what it began with is in a file, which env -0 wrote.
func exported(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what the script began with: %w", err)
	}
	began := map[string]bool{}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		began[string(v)] = true
	}
	var out []string
	for _, v := range os.Environ() {
		if !began[v] && !slices.ContainsFunc(notExported, func(p string) bool { return strings.HasPrefix(v, p) }) {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out, nil
}
