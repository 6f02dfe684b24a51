package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestRollingUpdateIsExplained: `job why` and `job status` say what a rolling update waits for, since when, until when, and which
// command moves it. A job without allocations of an older version is not asked about.
func TestRollingUpdateIsExplained(t *testing.T) {
	in := func(d time.Duration) int64 { return ago(-d) }
	fail := nomadlike.UpdateHold{AllocID: allocA, Name: "example.hello[0]", NodeName: "gpu-01", Why: "failed", Since: ago(12 * time.Second), Until: in(18 * time.Second)}
	hold := func(edit func(*nomadlike.UpdateHold)) []nomadlike.UpdateHold {
		h := fail
		edit(&h)
		return []nomadlike.UpdateHold{h}
	}
	for _, x := range []struct {
		name string
		u    nomadlike.Updating
		want []string
		not  string
	}{
		{"failed", nomadlike.Updating{New: 1, Next: in(18 * time.Second), Holds: []nomadlike.UpdateHold{fail}, MoreHolds: 2},
			[]string{"group hello: 1 allocation of version 3, 2 of version 1 still to be replaced, 1 at a time; the last step was 40s ago",
				"waits for 8ba85cef on gpu-01, which failed 12s ago and is started again in 18s (2026-11-20T12:00:18Z)", "and for 2 more allocations", "the next look is in 18s (2026-11-20T12:00:18Z)",
				"see  muster alloc status 8ba85cef ; back to what runs:  muster job revert example 1"}, "job eval"},
		{"failed for good", nomadlike.Updating{New: 1, Holds: hold(func(h *nomadlike.UpdateHold) { h.Until = 0 })}, []string{"failed 12s ago and is not started again", "job revert example 1"}, "the next"},
		{"starting", nomadlike.Updating{New: 1, Holds: hold(func(h *nomadlike.UpdateHold) { h.Why = "starting" })}, []string{"has been starting for 12s", "alloc status 8ba85cef"}, "failed 12s"},
		{"checks", nomadlike.Updating{New: 1, Holds: hold(func(h *nomadlike.UpdateHold) { h.Why = "unhealthy" })}, []string{"has run for 12s, and not all of its checks pass", "job revert example 1"}, "failed 12s"},
		{"settling", nomadlike.Updating{New: 1, Holds: hold(func(h *nomadlike.UpdateHold) { h.Why = "settling" })}, []string{"has been healthy for 12s; it counts in 18s (2026-11-20T12:00:18Z)"}, "revert"},
		{"restarting", nomadlike.Updating{New: 1, Holds: hold(func(h *nomadlike.UpdateHold) { h.Why, h.Until, h.Restarts, h.ExitCode = "restarting", 0, 2, 7 })}, []string{"which ended with exit code 7 12s ago and waits for restart 2", "job revert example 1"}, "is not started again"},
		{"settling again", nomadlike.Updating{New: 1, Holds: hold(func(h *nomadlike.UpdateHold) { h.Why, h.Restarts, h.ExitCode = "settling", 2, 7 })}, []string{"has been healthy for 12s; it counts in 18s (2026-11-20T12:00:18Z); before, it ended with exit code 7 and was restarted 2 times", "job revert example 1"}, "is not started again"},
		{"between steps", nomadlike.Updating{New: 1, Settled: 1, Next: in(20 * time.Second)}, []string{"the next step is in 20s (2026-11-20T12:00:20Z); at once with  muster job eval example"}, "waits for"},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.u.Group, x.u.From, x.u.To, x.u.Old, x.u.AtOnce, x.u.Since = "hello", 1, 3, 2, 1, ago(40*time.Second)
			f := newAgentFake(t)
			f.answers["GET /v1/job/example/why"] = &nomadlike.Why{JobID: "example", Namespace: "default", Status: "running", Updating: []nomadlike.Updating{x.u}}
			list := f.answers["GET /v1/job/example/allocations"].([]*wire.AllocationListStub)
			for _, args := range [][]string{{"job", "why", "example"}, {"job", "status", "example"}} {
				list[0].JobVersion = 1
				r := f.run(t, "", args...)
				for _, w := range x.want {
					if !strings.Contains(r.out, w) {
						t.Errorf("%v lacks %q:\n%s", args, w, r.out)
					}
				}
				if strings.Contains(r.out, x.not) {
					t.Errorf("%v has %q:\n%s", args, x.not, r.out)
				}
				list[0].JobVersion = 3
				if r := f.run(t, "", args...); args[1] == "status" && strings.Contains(r.out, "Rolling Update") {
					t.Errorf("all is of the newest version, and yet:\n%s", r.out)
				}
			}
		})
	}
}

// TestRunFollowsARollingUpdate: `job run` and `job revert` of an update end when it is complete (exit code 0), when it
// stops, or when another version takes over (1).
func TestRunFollowsARollingUpdate(t *testing.T) {
	u := nomadlike.Updating{Group: "hello", From: 1, To: 3, Old: 1, New: 1, AtOnce: 1, Since: ago(40 * time.Second)}
	stopped := u
	stopped.Failed = "no further allocation became healthy"
	for _, x := range []struct {
		name  string
		then  []nomadlike.Updating // after the first answer
		index uint64               // of the job then
		code  int
		want  string
	}{
		{"complete", nil, 42, 0, "the rolling update to version 3 is complete"},
		{"stopped", []nomadlike.Updating{stopped}, 42, 1, "the rolling update stopped: no further allocation became healthy"},
		{"taken over", nil, 50, 1, "before the rolling update had ended, version 4 took over"},
		{"reverted", nil, 50, 1, "version 3: the rolling update stopped: unhealthy; version 4 took over"},
	} {
		for _, args := range [][]string{{"job", "run", "-"}, {"job", "revert", "example", "1"}} {
			t.Run(x.name+" "+args[1], func(t *testing.T) {
				f := newAgentFake(t)
				job, looks := *f.answers["GET /v1/job/example"].(*wire.Job), 0
				job.Version = ptr(uint64(3))
				f.answers["GET /v1/job/example/why"] = func(*http.Request) any {
					looks++
					w := &nomadlike.Why{JobID: "example", Updating: x.then}
					if looks == 1 {
						w.Updating = []nomadlike.Updating{u}
					}
					return w
				}
				f.answers["GET /v1/job/example"] = func(*http.Request) any {
					j := job
					j.JobModifyIndex = ptr(uint64(42))
					if looks > 0 && x.index != 42 {
						j.JobModifyIndex, j.Version = &x.index, ptr(uint64(4))
					}
					return &j
				}
				was := job
				if x.name == "reverted" {
					was.StatusDescription = ptr("the rolling update stopped: unhealthy")
				}
				f.answers["GET /v1/job/example/versions"] = wire.JobVersionsResponse{Versions: []*wire.Job{&was}}
				r := f.run(t, jobSource, args...)
				if r.code != x.code || !strings.Contains(r.out, x.want) || !strings.Contains(r.out, `group "hello": 0 of 1 allocation of version 3 healthy, 1 of an older version`) {
					t.Errorf("exit code %d, want %d and %q:\n%s%s", r.code, x.code, x.want, r.out, r.errOut)
				}
			})
		}
	}
}

// TestFutureReschedules: only evaluations that start failed work again are listed as rescheduling.
func TestFutureReschedules(t *testing.T) {
	f := newAgentFake(t)
	at := fixedNow.Add(time.Minute)
	f.answers["GET /v1/job/example/evaluations"] = []*wire.Evaluation{{ID: evalA, Status: "pending", TriggeredBy: "alloc-failure", WaitUntil: at},
		{ID: evalB, Status: "pending", TriggeredBy: "rolling-update", WaitUntil: at}}
	_, list, ok := strings.Cut(f.run(t, "", "job", "status", "example").out, "Future Rescheduling Attempts")
	list, _, _ = strings.Cut(list, "\n\n")
	if !ok || !strings.Contains(list, "alloc-failure") || strings.Contains(list, "rolling-update") {
		t.Errorf("want the evaluation of the failure alone:\n%s", list)
	}
}
