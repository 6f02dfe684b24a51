package taskenv

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/structs"
)

// work sets the variables about the task's work: its place in an array, its deadline, and whether it continues the work
// of another allocation.
func (e *Env) work(in *Input) {
	a, j := in.Alloc, in.Alloc.Job
	if j.CreateIndex > 0 {
		e.made["MUSTER_JOB_NUMBER"] = strconv.FormatUint(uint64(j.CreateIndex), 10)
	}
	if x := j.Array; x != nil {
		e.made["MUSTER_ARRAY_INDEX"] = strconv.Itoa(a.NameIndex)
		e.made["MUSTER_ARRAY_COUNT"] = strconv.Itoa(x.Count)
		for name, values := range x.Params { // each name once
			if a.NameIndex < len(values) {
				e.made["MUSTER_PARAM_"+name] = values[a.NameIndex]
			}
		}
	}
	if j.Deadline != 0 {
		e.made["MUSTER_DEADLINE"] = j.Deadline.Time().Format(time.RFC3339)
	}
	if n, why := restarted(in); n > 0 || why != "" {
		e.made["MUSTER_RESTART_COUNT"] = strconv.FormatInt(n, 10)
		e.made["MUSTER_RESTART_REASON"] = why
	}
	if g := j.Group(a.Group); g != nil {
		if limit := j.RunLimit(g); limit > 0 {
			e.made["MUSTER_RUN_LIMIT"] = strconv.FormatInt(int64(limit/time.Second), 10) // seconds
		}
		if g.Checkpoint != nil {
			e.checkpoint(g, in)
		}
	}
}

// CheckpointDone is the variable with the path of the file that marks a checkpoint as complete.
const CheckpointDone = "MUSTER_CHECKPOINT_DONE"

// checkpoint sets the variables with the checkpoint directory and the checkpoint to resume from. A checkpoint in
// another allocation's directory is available only if the group's disk is migrated.
func (e *Env) checkpoint(g *structs.Group, in *Input) {
	if dir := g.Checkpoint.Dir; dir != "" {
		e.made["MUSTER_CHECKPOINT_DIR"] = e.Replace(dir)
	}
	if in.TaskDir != "" {
		e.made[CheckpointDone] = filepath.Join(in.TaskDir, ".checkpoint-done")
	}
	if in.Saved == nil {
		return
	}
	e.made["MUSTER_CHECKPOINT_TIME"] = in.Saved.Time.Time().UTC().Format(time.RFC3339)
	path := in.Saved.Path
	for _, d := range [][2]string{{"${NOMAD_ALLOC_DIR}/", in.AllocDir}, {"${NOMAD_TASK_DIR}/", in.TaskDir}} {
		if rest, ok := strings.CutPrefix(path, d[0]); ok {
			if path = ""; d[1] != "" && (in.OwnSaved || g.Disk.Sticky) {
				path = filepath.Join(d[1], rest)
			}
		}
	}
	if path != "" {
		e.made["MUSTER_CHECKPOINT_PATH"] = path
	}
}

// restarted returns how often the work of a task was started again, by allocations before this one and within it, and
// the last reason.
func restarted(in *Input) (int64, string) {
	n, why := in.Alloc.Lineage().Restarts, in.Alloc.Lineage().RestartReason
	if in.Gang != nil && in.Gang.Roster.Restarts > 0 {
		n = max(n, in.Gang.Roster.Restarts)
		if why == "" {
			why = in.Gang.Roster.Reason
		}
	}
	if in.TaskRestarts > 0 {
		n, why = n+in.TaskRestarts, in.TaskRestartReason
	}
	return n, why
}
