package runner

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/structs"
)

// allocHook is a step before the tasks of an allocation start and after all of them have ended. prerun runs in the
// order of allocHooks, postrun in reverse; both may run again after an agent restart.
type allocHook struct {
	name    string
	prerun  func(ctx context.Context, r *Runner) error
	postrun func(r *Runner)
}

func allocHooks() []allocHook {
	return []allocHook{
		{name: "validate", prerun: validateAlloc},
		{name: "wait for the allocations it replaces", prerun: waitForOthers},
		{name: "health of the node", prerun: awaitHealth},
		{name: "devices", prerun: claim, postrun: func(r *Runner) { r.cfg.Host.Ledger.Release(r.id) }},
		{name: "disk", prerun: checkDisk},
		{name: "directories", prerun: buildDirs, postrun: dropSecrets},
		{name: "network", prerun: buildNetwork, postrun: dropNetwork},
		{name: "rendezvous port", postrun: dropPort},
		{name: "data of the previous allocation", prerun: adoptData},
		{name: "commands of the operator", prerun: prolog, postrun: epilog},
	}
}

func validateAlloc(_ context.Context, r *Runner) error {
	a := r.Alloc()
	g := a.Job.Group(a.Group)
	switch {
	case g == nil:
		return fmt.Errorf("version %d of job %q has no group %q", a.JobVersion, a.JobID, a.Group)
	case len(g.Tasks) == 0:
		return fmt.Errorf("group %q has no task", a.Group)
	case r.cfg.Host.Node().ID != a.NodeID:
		return fmt.Errorf("the allocation belongs on node %s", a.NodeID.Short())
	}
	for _, t := range g.Tasks {
		if r.cfg.Host.Drivers[t.Driver] == nil {
			return fmt.Errorf("task %q wants driver %q, which this node does not have", t.Name, t.Driver)
		}
	}
	return nil
}

func waitForOthers(ctx context.Context, r *Runner) error {
	a := r.Alloc()
	ids := a.WaitsOn
	if g := a.Job.Group(a.Group); !a.Lineage().Previous.IsZero() && g != nil && g.Disk.Sticky {
		ids = append(slices.Clip(ids), a.Lineage().Previous) // its data can be taken over only when it is no longer written
	}
	if len(ids) == 0 || r.resumed() {
		return nil
	}
	return r.cfg.Agent.Await(ctx, ids)
}

// claimPatience is how long an allocation waits for devices that are absent or taken before it fails.
const claimPatience = 30 * time.Second

// claim reserves devices, cores and ports in the ledger. It retries for a while: an agent that has just started may not
// have found its devices yet, and an allocation that ends holds its resources until then.
func claim(ctx context.Context, r *Runner) error {
	patience := r.cfg.Policy.ClaimPatience
	if patience == 0 {
		patience = claimPatience
	}
	deadline := time.Now().Add(patience)
	bo := backoff{min: 20 * time.Millisecond, max: time.Second}
	for {
		err := r.cfg.Host.Ledger.Claim(r.Alloc(), r.cfg.Host.Node())
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if !sleep(ctx, bo.next()) {
			return ctx.Err()
		}
	}
}

// checkDisk refuses an allocation whose node lacks the disk space that the group asks for.
func checkDisk(_ context.Context, r *Runner) error {
	g := r.group()
	if r.dir == nil || g == nil || g.Disk.SizeMiB <= 0 || r.resumed() {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.cfg.Host.AllocsDir, &st); err != nil {
		return fmt.Errorf("disk of %s: %w", r.cfg.Host.AllocsDir, err)
	}
	if free := int64(st.Bavail) * st.Bsize >> 20; free < g.Disk.SizeMiB {
		return fmt.Errorf("the group asks for %d MiB of disk and %d MiB are free in %s", g.Disk.SizeMiB, free, r.cfg.Host.AllocsDir)
	}
	return nil
}

func buildDirs(_ context.Context, r *Runner) error {
	if r.dir == nil {
		return nil
	}
	return r.dir.Build()
}

func dropSecrets(r *Runner) {
	if r.dir == nil {
		return
	}
	for _, t := range r.tasks {
		r.dir.Unmount(t.name)
	}
}

func adoptData(_ context.Context, r *Runner) error {
	a, g := r.Alloc(), r.group()
	if r.dir == nil || g == nil || !g.Disk.Sticky || a.Lineage().Previous.IsZero() || r.resumed() {
		return nil
	}
	r.touched.Store(true)
	prev := allocdir.New(r.cfg.Host.AllocsDir, a.Lineage().Previous.String())
	names := make([]string, 0, len(g.Tasks))
	for _, t := range g.Tasks {
		names = append(names, t.Name)
	}
	return r.dir.Adopt(prev, names)
}

// attempt is one start of a task. The hooks run in order, and each fills in a part of it.
type attempt struct {
	task   *task
	spec   *structs.Task
	driver driver.Driver
	owner  taskfs.Owner
	env    *taskenv.Env
	vars   map[string]string  // see environment; nil before it was called
	gang   *taskenv.Gang      // or nil
	joined func(epoch uint64) // records the epoch of the roster that the run is started with
	config driver.TaskConfig
	note   func(structs.TaskEvent) // adds an event to the task
}

// quick reports whether the start needs only this node: no download, no other gang member and no contact with a server.
func (a *attempt) quick() bool {
	g := a.task.r.group()
	_, slow := a.driver.(driver.Preparer)
	_, contact := a.task.r.StopOnClient()
	return g != nil && g.Gang == nil && !slow && !contact && len(a.spec.Artifacts) == 0 && len(a.spec.Templates) == 0 && len(a.spec.Identities) == 0
}

// taskHook is a step before each start of a task and after each end.
type taskHook struct {
	name     string
	prestart func(ctx context.Context, a *attempt) error
	exited   func(t *task)
}

var taskHooks = []taskHook{
	{name: "validate", prestart: validateTask},
	{name: "contact", prestart: awaitContact},
	{name: "gang", prestart: joinGang},
	{name: "environment", prestart: makeEnv},
	{name: "user", prestart: resolveUser},
	{name: "task directory", prestart: buildTaskDir},
	{name: "socket", prestart: openAPI, exited: (*task).closeAPI},
	{name: "dispatch payload", prestart: writePayload},
	{name: "identities", prestart: signIdentities},
	{name: "artifacts", prestart: fetchArtifacts},
	{name: "templates", prestart: renderTemplates},
	{name: "configuration", prestart: makeConfig},
	{name: "limits", prestart: setLimits},
	{name: "GPU memory of ended tasks", prestart: awaitGPUs},
	{name: "shares of GPU memory", prestart: limitGPUs},
	{name: "logs", prestart: setLogs},
	{name: "network", prestart: setNetwork},
	{name: "volumes", prestart: mountVolumes},
	{name: "hostfile", prestart: writeHostfile},
	{name: "submitter", prestart: setPerson},
	{name: "RDMA", prestart: setRDMA},
	{name: "launcher", prestart: setLauncher},
	{name: "driver", prestart: prepareDriver},
	{name: "rendezvous", prestart: openPort}, // last: from here on the task may bind the port
}

func validateTask(ctx context.Context, a *attempt) error {
	fp := a.driver.Fingerprint(ctx)
	if !fp.Detected || fp.Health != driver.Healthy {
		return fmt.Errorf("driver %q does not work here now: %s", a.spec.Driver, fp.Detail)
	}
	a.config.AllocID = a.task.r.id.String()
	a.config.Name = a.spec.Name
	a.config.KillSignal = a.spec.KillSignal
	a.config.KillTimeout = a.spec.KillTimeout
	return nil
}

func makeEnv(_ context.Context, a *attempt) error {
	r := a.task.r
	in := taskenv.Input{Node: r.cfg.Host.Node(), Region: r.cfg.Servers.Region, Alloc: r.Alloc(), Task: a.spec, Inherit: r.cfg.Policy.Inherit, Network: r.address()}
	in.Gang, in.Fabric = a.gang, r.cfg.Policy.Fabric
	if wants, _ := rdmaWish(a.spec, r.Alloc().Grants); wants {
		in.Fabric = nearFabric(in.Fabric, adaptersNear(in.Node, in.Alloc.Grants, a.spec.Name))
	}
	in.TaskRestarts, in.TaskRestartReason = a.task.restarts()
	in.Saved, in.OwnSaved = a.task.restored(), a.task.newest() != nil
	if r.dir != nil {
		t := r.dir.Task(a.spec.Name)
		in.AllocDir, in.TaskDir, in.SecretsDir = r.dir.SharedDir(), t.Local, t.Secrets
	}
	if e := elsewhere(a.driver); e != nil {
		in.AllocDir, in.TaskDir, in.SecretsDir = e.TaskDirs()
		in.Inherit = []string{} // the image's environment replaces the agent's
	}
	a.env, a.vars = taskenv.New(in), nil
	a.config.Env = a.environment
	return nil
}

// environment returns the variables that the task is started with, the same map at each call. What is set in a.env later is not
// in it.
func (a *attempt) environment() map[string]string {
	if a.vars == nil {
		a.vars = a.env.Vars()
	}
	return a.vars
}

func buildTaskDir(_ context.Context, a *attempt) error {
	r := a.task.r
	if r.dir == nil {
		return nil
	}
	spec := allocdir.TaskSpec{Owner: a.owner, Apart: elsewhere(a.driver) != nil, Memory: r.cfg.Policy.SecretsInMemory, SecretsMiB: a.spec.Resources.SecretsMiB}
	if err := r.dir.BuildTask(a.spec.Name, spec); err != nil {
		return err
	}
	t := r.dir.Task(a.spec.Name)
	a.config.Dirs = driver.Dirs{ // tasks start in their own directory, as in Nomad: "local/run.sh" is a path in it
		AllocDir: r.dir.SharedDir(), TaskDir: t.Root, LocalDir: t.Root, SecretsDir: t.Secrets,
		HideDir: r.cfg.Host.HideDir, AllocRoot: r.dir.Root,
	}
	return nil
}

// writePayload writes the payload of a dispatched job below the task's local directory.
func writePayload(_ context.Context, a *attempt) error {
	r := a.task.r
	job := r.job()
	if a.spec.DispatchPayload == "" || len(job.Payload) == 0 || r.dir == nil {
		return nil
	}
	dir, name, err := r.dir.Create(filepath.Join(a.spec.Name, allocdir.Local, filepath.Clean(a.spec.DispatchPayload)))
	if err == nil {
		defer dir.Close()
		err = dir.Replace(name, job.Payload, 0o640, a.owner)
	}
	if err != nil {
		return driver.Permanent(fmt.Errorf("dispatch_payload file %q: %w", a.spec.DispatchPayload, err))
	}
	return nil
}

func makeConfig(_ context.Context, a *attempt) error {
	c, err := a.env.Config(a.spec.Config)
	if err != nil {
		return driver.Permanent(err)
	}
	a.config.Config = c
	return nil
}

func setLimits(_ context.Context, a *attempt) error {
	r := a.task.r
	res := a.spec.Resources
	lim := driver.Resources{CPUMHz: res.CPU, MemoryMiB: res.MemoryMiB, PidsMax: r.cfg.Policy.PidsMax, ShmMiB: res.ShmMiB}
	if res.Cores > 0 {
		cores := r.Alloc().TaskCores(a.spec.Name)
		if len(cores) == 0 {
			return driver.Permanent(fmt.Errorf("the task asks for %d cores and its allocation was given %d", res.Cores, len(r.Alloc().Cores)))
		}
		for _, c := range cores {
			lim.Cores = append(lim.Cores, int(c))
		}
		if res.NUMA.Wants() == structs.NUMARequire {
			lim.Mems = cgroup.MemoryNodes(lim.Cores)
		}
		if m := r.cfg.Host.Node().Resources.MHzPerCore; m > 0 {
			lim.CPUMHz = res.Cores * m
		}
	}
	switch {
	case !r.cfg.Policy.Oversubscribe:
	case res.MemoryMaxMiB > res.MemoryMiB:
		lim.MemoryMaxMiB = res.MemoryMaxMiB
	case res.MemoryMaxMiB < 0:
		lim.MemoryMaxMiB = r.cfg.Host.Node().Resources.MemoryMiB
	}
	if r.cfg.Host.DeviceNodes != nil {
		var mine []structs.Grant
		for _, g := range r.Alloc().Grants {
			if g.Task == a.spec.Name {
				mine = append(mine, g)
			}
		}
		for i := range mine {
			if mine[i].IsGPU() {
				lim.GPUs = append(lim.GPUs, mine[i].Instance)
			}
		}
		if len(mine) > 0 {
			nodes, err := r.cfg.Host.DeviceNodes(mine)
			if err != nil {
				return err
			}
			lim.Devices = nodes
		}
	}
	a.config.Resources = lim
	return nil
}

func setLogs(_ context.Context, a *attempt) error {
	r := a.task.r
	l := a.spec.Logs
	if r.dir == nil || l.Disabled {
		return nil
	}
	a.config.Logs = driver.LogConfig{
		StdoutBase:  filepath.Join(r.dir.LogDir(), a.spec.Name+".stdout"),
		StderrBase:  filepath.Join(r.dir.LogDir(), a.spec.Name+".stderr"),
		MaxFiles:    l.MaxFiles,
		MaxFileSize: int64(l.MaxFileSizeMB) << 20,
	}
	return nil
}

// CheckDisk kills the allocation if it uses more disk than its group asked for. Otherwise it returns the bytes left.
// limited is false if the allocation has no limit or has ended.
func (r *Runner) CheckDisk() (left int64, limited bool) {
	g := r.group()
	if r.dir == nil || g == nil || g.Disk.SizeMiB <= 0 || !r.cfg.Policy.EnforceDisk || r.Final() != nil {
		return 0, false
	}
	limit := g.Disk.SizeMiB << 20
	if !r.touched.Load() { // avoids walking the empty directories of the many allocations that wait to start
		return limit, true
	}
	used, err := r.dir.Usage(limit)
	if err != nil || used <= limit {
		return limit - used, err == nil
	}
	msg := fmt.Sprintf("the allocation uses more than the %d MiB of ephemeral_disk that its group asks for", g.Disk.SizeMiB)
	r.stop(&stopReason{event: failing(event(EventDisk, msg, "disk_limit", strings.TrimSpace(fmt.Sprint(limit)))), fail: true, desc: msg})
	return 0, false
}
