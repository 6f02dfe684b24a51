package client

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/structs"
)

// TestGangResumesTogether: when a gang continues because it grew, a member resumes from what it saved for that. When it
// continues without one that was lost, it resumes from the newest checkpoint that all members had written, although it has
// a newer one.
func TestGangResumesTogether(t *testing.T) {
	srv, cfg := processNode(t)
	cfg.Tasks.CheckpointSettle, cfg.Tasks.CheckpointPoll = 50*time.Millisecond, 20*time.Millisecond
	a := start(t, srv, cfg)
	job := clientfake.Job("train", structs.JobBatch, sh("main", `[ $MUSTER_GANG_EPOCH != 1 ] || echo x > $NOMAD_ALLOC_DIR/data/step-200; echo "epoch $MUSTER_GANG_EPOCH from ${MUSTER_CHECKPOINT_PATH##*/}."; trap 'exit 0' TERM; while :; do sleep 0.05; done`))
	g := job.Groups[0]
	g.Gang, g.Checkpoint = &structs.Gang{}, &structs.Checkpoint{Dir: "${NOMAD_ALLOC_DIR}/data"}
	id := srv.Place(a.ID(), job)
	ro := structs.Roster{Namespace: job.Namespace, JobID: job.ID, Group: "g", Port: 29500,
		Members: []structs.RosterMember{{Alloc: id, Node: a.ID(), Name: "n1", Address: "127.0.0.1"}}}
	runs := func(epoch uint64, reason string, c *structs.GangCheckpoint, want string) {
		t.Helper()
		ro.Epoch, ro.Reason, ro.Checkpoint = epoch, reason, c
		srv.Roster(ro)
		srv.WaitStatus(t, id, structs.ClientRunning)
		readLog(t, srv.Back(a.ID()), id, "stdout", func(s string) bool { return strings.Contains(s, want) })
	}
	runs(1, structs.RosterPlaced, nil, "epoch 1 from .")
	srv.Wait(t, "its checkpoint", func() bool { return srv.Alloc(id).Saved != nil })
	all := &structs.Saved{Time: srv.Alloc(id).Saved.Time - 60e9, Path: "/shared/step-100"}
	runs(2, structs.RosterGrown, &structs.GangCheckpoint{Newest: all, Parts: 2}, "epoch 2 from step-200.")
	runs(3, structs.RosterLost, &structs.GangCheckpoint{Newest: all, Parts: 2, Since: structs.LogTimeOf(time.Now())}, "epoch 3 from step-100.")
	srv.Stop(id)
	srv.Wait(t, "the end", func() bool { return srv.Alloc(id).ClientTerminal() })
}
