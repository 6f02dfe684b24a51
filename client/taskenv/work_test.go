package taskenv

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

func TestWork(t *testing.T) {
	task := &structs.Task{Name: "t", Env: map[string]string{"OUT": "/out/${MUSTER_PARAM_LR}-${MUSTER_ARRAY_INDEX}"}}
	j := &structs.Job{ID: "sweep", Namespace: "default", CreateIndex: 41, Deadline: structs.LogTimeOf(time.Unix(1<<31, 0)), Runtime: structs.Runtime{Limit: time.Hour},
		Array:  &structs.Array{Count: 3, Params: map[string][]string{"LR": {"0.1", "0.2", "0.3"}, "SHORT": {"x"}}},
		Groups: []*structs.Group{{Name: "g", Tasks: []*structs.Task{task}, Checkpoint: &structs.Checkpoint{Dir: "/ckpt/${NOMAD_JOB_ID}"}}}}
	a := &structs.Allocation{JobID: "sweep", Group: "g", NameIndex: 1, Job: j, Line: &structs.Lineage{Restarts: 2, RestartReason: "preempt"}}
	got := New(Input{Node: &structs.Node{}, Alloc: a, Task: task}).Vars()
	for k, want := range map[string]string{
		"MUSTER_JOB_NUMBER": "41", "MUSTER_ARRAY_INDEX": "1", "MUSTER_ARRAY_COUNT": "3", "MUSTER_PARAM_LR": "0.2", "OUT": "/out/0.2-1", "MUSTER_DEADLINE": "2038-01-19T03:14:08Z",
		"MUSTER_RESTART_COUNT": "2", "MUSTER_RESTART_REASON": "preempt", "MUSTER_CHECKPOINT_DIR": "/ckpt/sweep", "MUSTER_RUN_LIMIT": "3600",
	} {
		if got[k] != want {
			t.Errorf("%s = %q, want %q", k, got[k], want)
		}
	}
	if _, ok := got["MUSTER_PARAM_SHORT"]; ok {
		t.Error("a parameter without a value for the index")
	}
	a.Line, j.Array, j.Deadline, j.Groups[0].Checkpoint = nil, nil, 0, nil
	for k := range New(Input{Node: &structs.Node{}, Alloc: a, Task: &structs.Task{}}).Vars() {
		switch k {
		case "MUSTER_ARRAY_INDEX", "MUSTER_PARAM_LR", "MUSTER_DEADLINE", "MUSTER_RESTART_COUNT", "MUSTER_CHECKPOINT_DIR":
			t.Errorf("%s is set for an ordinary task", k)
		}
	}
}
