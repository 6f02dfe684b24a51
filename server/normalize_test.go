package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// A job's checkpoint grace is shortened to what its queue, or one above it, allows, with a warning. Validation and plan
// give the same warning. Without a limit nothing changes.
func TestGraceIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		job := func(id, queue string, grace time.Duration) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Queue = structs.JobBatch, structs.QueuePath(queue)
				j.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: grace}
				j.Groups[0].Reschedule = structs.Reschedule{}
			})
		}
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{
			{Path: "free"}, {Path: "tight", PreemptGrace: 20 * time.Second}, {Path: "tight/below"}, {Path: "wide", PreemptGrace: 5 * time.Minute}}})
		for _, c := range []struct {
			id, queue   string
			grace, want time.Duration
			says        string
		}{
			{"a", "free", 24 * time.Hour, 24 * time.Hour, ""},
			{"b", "wide", 5 * time.Minute, 5 * time.Minute, ""},
			{"c", "wide", time.Hour, 5 * time.Minute, `checkpoint grace of 1h is shortened to 5m, the most that queue "wide" gives`},
			{"d", "tight/below", time.Minute, 20 * time.Second, "shortened to 20s"},
			{"e", "tight", 0, 20 * time.Second, "it has 20s to save its state"},
			{"f", "wide", 0, 0, ""},
		} {
			j := job(c.id, c.queue, c.grace)
			v := call(t, s, methods.JobValidate, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			r := call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			for what, warnings := range map[string]string{"validate": v.Warnings, "register": r.Warnings} {
				if (warnings == "") != (c.says == "") || !strings.Contains(warnings, c.says) {
					t.Errorf("%s, %s: warnings %q, want %q", c.id, what, warnings, c.says)
				}
			}
			kept := s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: c.id})
			if got := kept.Groups[0].Checkpoint.Grace; got != c.want {
				t.Errorf("%s: grace %v is kept, want %v", c.id, got, c.want)
			}
			if j.Groups[0].Checkpoint.Grace != c.grace {
				t.Errorf("%s: the job that was given has changed", c.id)
			}
			// Submitting it again changes nothing.
			if again := call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: job(c.id, c.queue, c.grace)}); again.JobModifyIndex != r.JobModifyIndex {
				t.Errorf("%s: submitting the same again made a new version", c.id)
			}
		}
	})
}
