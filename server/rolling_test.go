package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestWhyTellsOfARollingUpdate: `job why` says what a rolling update waits for: that the new allocation has run for long enough,
// that its checks pass, or that it does not fail. A version that fails leaves what runs of the old one alone.
func TestWhyTellsOfARollingUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 3)
		submit := func(env string, checks bool) {
			register(t, s, passJob("web", 3, func(j *structs.Job) {
				u := &structs.Update{MaxParallel: 1, Stagger: 30 * time.Second, MinHealthyTime: 10 * time.Second, HealthCheck: "task_states", HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute}
				if checks {
					u.HealthCheck = structs.HealthByChecks
					j.Groups[0].Services = []structs.Service{{Name: "s", Checked: true}}
				}
				j.Groups[0].Update, j.Groups[0].Tasks[0].Env = u, map[string]string{"V": env}
			}))
			time.Sleep(5 * time.Second)
		}
		why := func() []methods.Updating {
			return call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "web"}).Updating
		}
		want := func(step, hold string, from, to uint64, old, fresh, settled int64) (h methods.UpdateHold) {
			t.Helper()
			us := why()
			if len(us) != 1 {
				t.Fatalf("%s: %+v, want one update", step, us)
			}
			u := us[0]
			if u.Group != "g" || u.From != from || u.To != to || u.Old != old || u.New != fresh || u.Settled != settled || u.AtOnce != 1 || u.Since == 0 || u.Next == 0 {
				t.Errorf("%s: %+v", step, u)
			}
			if hold != "" && (len(u.Holds) != 1 || u.Holds[0].Why != hold || u.Holds[0].Since == 0 || u.Holds[0].NodeName == "") {
				t.Fatalf("%s: holds %+v, want one that is %s", step, u.Holds, hold)
			} else if hold == "" {
				return h
			}
			return u.Holds[0]
		}
		submit("0", false)
		if us := why(); us != nil {
			t.Fatalf("a first version: %+v", us)
		}
		submit("1", false)
		if h := want("settling", methods.HoldSettles, 0, 1, 2, 1, 0); h.Until.Sub(h.Since) != 10*time.Second {
			t.Errorf("settles from %d until %d", h.Since, h.Until)
		}
		time.Sleep(10 * time.Second) // stagger is 30 s, and does not matter here
		want("the first is healthy", methods.HoldSettles, 0, 1, 1, 2, 1)
		time.Sleep(20 * time.Second)
		if us := why(); us != nil {
			t.Fatalf("an update that has ended: %+v", us)
		}
		f.set(func() { f.fails["web"] = true })
		submit("2", false)
		if h := want("failed", methods.HoldFailed, 1, 2, 2, 1, 0); h.Until == 0 {
			t.Errorf("it is not said when it is started again: %+v", h)
		}
		time.Sleep(5 * time.Minute)
		if want("failed again and again", methods.HoldFailed, 1, 2, 2, 1, 0); len(live(s, "web")) != 2 {
			t.Errorf("%d allocations run, want the 2 of the old version", len(live(s, "web")))
		}
		f.set(func() { f.fails["web"] = false })
		submit("3", true)
		want("checks that do not pass", methods.HoldChecks, 1, 3, 2, 1, 0)
	})
}

// TestRolloutsEnd: a version is stable once all of it is healthy. An update whose allocations do not become healthy
// replaces them after healthy_deadline, and stops after progress_deadline or, without one, with the first that is late.
// With auto_revert the newest stable version returns. What runs of an older version continues.
func TestRolloutsEnd(t *testing.T) {
	for _, x := range []struct {
		name               string
		update             structs.Update
		stops              time.Duration // after which it has stopped; a minute before, it has not
		placed             int           // allocations of the version that does not become healthy
		version, runs      uint64        // then: of the job, and of the allocations that run
		failed, autoRevert bool
	}{
		{"progress", structs.Update{HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute}, 11 * time.Minute, 2, 1, 0, true, false},
		{"no healthy deadline", structs.Update{ProgressDeadline: 10 * time.Minute}, 11 * time.Minute, 1, 1, 0, true, false},
		{"first late one", structs.Update{HealthyDeadline: 5 * time.Minute}, 6 * time.Minute, 1, 1, 0, true, false},
		{"auto_revert", structs.Update{HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute, AutoRevert: true}, 13 * time.Minute, 2, 2, 2, false, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testServer(t, nil)
				newFleet(t, one(s), 3)
				k := structs.JobKey{Namespace: "default", ID: "web"}
				submit := func(checks bool) {
					register(t, s, passJob("web", 2, func(j *structs.Job) {
						u := x.update
						u.MaxParallel, u.Stagger, u.MinHealthyTime, u.HealthCheck = 1, 30*time.Second, 10*time.Second, structs.HealthByChecks
						j.Groups[0].Update, j.Groups[0].Reschedule.Unlimited = &u, true
						if checks { // none of which passes
							j.Groups[0].Services = []structs.Service{{Name: "s", Checked: true}}
							j.Groups[0].Tasks[0].Env = map[string]string{"V": "1"}
						}
					}))
				}
				job := func() *structs.Job { return s.Published().Snapshot.JobByKey(k) }
				submit(false)
				time.Sleep(30 * time.Second)
				if !job().Stable {
					t.Fatal("the first version is healthy and not stable")
				}
				submit(true)
				if x.autoRevert {
					time.Sleep(x.stops)
				} else {
					time.Sleep(x.stops - 2*time.Minute)
					if j := job(); j.UpdateFailed != "" || j.Stable {
						t.Errorf("too early: %q", j.UpdateFailed)
					}
					time.Sleep(2 * time.Minute)
				}
				j := job()
				if j.Version != x.version || (j.UpdateFailed != "") != x.failed || j.Stable == x.failed {
					t.Errorf("version %d, stopped %q, stable %v; want version %d", j.Version, j.UpdateFailed, j.Stable, x.version)
				}
				placed := 0
				for _, a := range s.Published().Snapshot.AllocsByJob(k) {
					if a.JobVersion == 1 {
						placed++
					}
				}
				old := 0
				for _, a := range live(s, "web") {
					if a.JobVersion == x.runs {
						old++
					}
				}
				if placed != x.placed || old == 0 || x.autoRevert && old != 2 {
					t.Errorf("%d allocations of version 1 were placed, want %d; %d of version %d run", placed, x.placed, old, x.runs)
				}
				us := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "web"}).Updating
				if x.failed && (len(us) != 1 || us[0].Failed != j.UpdateFailed || us[0].Next != 0) || !x.failed && us != nil {
					t.Errorf("why: %+v", us)
				}
				if !x.failed {
					return
				}
				submit(true)
				time.Sleep(x.stops - 2*time.Minute)
				if j := job(); j.Version != 1 || j.UpdateFailed != "" {
					t.Errorf("submitted again it is version %d, stopped: %q", j.Version, j.UpdateFailed)
				}
				time.Sleep(2 * time.Minute)
				if job().UpdateFailed == "" {
					t.Error("submitted again it does not stop")
				}
			})
		})
	}
}
