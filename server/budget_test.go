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

// TestQueueBudget: when the GPU hours of a day are used, the next job waits, with the time in its reason, and starts at midnight by
// itself. Running work is left alone, and the budget of one submitter leaves others alone.
func TestQueueBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(23 * time.Hour) // until an hour before midnight: virtual time begins with a day
		s := testServer(t, nil)
		f := newGPUFleet(t, s, 3)
		submit := func(id string, queue structs.QueuePath, user string, gpus int64, runs time.Duration) {
			f.batch(id, queue, user, gpus, runs)
			time.Sleep(5 * time.Second)
		}
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot}, {Path: "lab", GPUHoursMax: 1, GPUHoursPeriod: structs.PeriodDay},
			{Path: "each", GPUHoursUserMax: 5, GPUHoursPeriod: structs.PeriodDay}}})
		why := func(id string) string {
			t.Helper()
			r := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: id})
			if len(r.Reports) == 0 || len(r.Reports[0].Refusals) == 0 {
				t.Fatalf("%s has no reason", id)
			}
			x := r.Reports[0].Refusals[0]
			return x.Limit() + ": " + x.Dimension.Name() + " until " + x.Detail
		}
		midnight := time.Now().Truncate(24 * time.Hour).Add(24 * time.Hour)
		submit("first", "lab", "ada", 2, 20*time.Minute)
		submit("second", "lab", "eve", 2, 20*time.Minute)
		if running(s, "first") != 1 || running(s, "second") != 0 {
			t.Fatalf("%d of the first and %d of the second run", running(s, "first"), running(s, "second"))
		}
		if got, want := why("second"), "queue lab: gpu-hours until "+midnight.UTC().Format(time.RFC3339); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		submit("third", "lab", "eve", 1, 15*time.Minute)
		if running(s, "third") != 1 {
			t.Error("a job that fits into what is left waits")
		}
		time.Sleep(25 * time.Minute)
		if running(s, "second") != 0 {
			t.Error("the second job runs beyond the budget")
		}
		st := call(t, s, methods.QueueGet, rpc.Header{}, &methods.NameRequest{Name: "lab"})
		if over := st.Queue.PeriodUse - structs.OfGPUHours(1)*55/60; over < 0 || over > 60_000 || st.Queue.PeriodEnd.Time().UTC() != midnight.UTC() {
			t.Errorf("%d thousandths of GPU seconds more than 55 GPU minutes are used until %s", over, st.Queue.PeriodEnd.Time())
		}
		time.Sleep(time.Until(midnight) - 5*time.Minute)
		if running(s, "second") != 0 {
			t.Error("it starts before the period ends")
		}
		time.Sleep(6 * time.Minute)
		if running(s, "second") != 1 { // or a little earlier: what is used after midnight does not count
			t.Errorf("in the new period it waits: %s", why("second"))
		}
		time.Sleep(20 * time.Minute) // until all GPUs are free
		submit("ada-1", "each", "ada", 1, 4*time.Hour)
		submit("ada-2", "each", "ada", 1, 4*time.Hour)
		submit("eve-1", "each", "eve", 1, 4*time.Hour)
		if running(s, "ada-1") != 1 || running(s, "ada-2") != 0 || running(s, "eve-1") != 1 {
			t.Errorf("%d, %d and %d run", running(s, "ada-1"), running(s, "ada-2"), running(s, "eve-1"))
		}
		if got := why("ada-2"); !strings.HasPrefix(got, "queue each, user ada: gpu-hours until ") {
			t.Errorf("told %q", got)
		}
	})
}
