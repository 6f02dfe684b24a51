package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestDeployments: the rolling updates of a service are seen as deployments. One that ends is successful, one that makes no progress
// has failed, and the version to which auto_revert goes back has its own. A version that another follows before it has ended
// was cancelled, and a job on hold is paused.
func TestDeployments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 3)
		submit := func(id, env string, checks bool) *methods.JobRegisterResponse {
			return call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: passJob(id, 2, func(j *structs.Job) {
				j.Groups[0].Update = &structs.Update{MaxParallel: 1, Stagger: 30 * time.Second, MinHealthyTime: 10 * time.Second, HealthCheck: structs.HealthByChecks,
					HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute, AutoRevert: true}
				j.Groups[0].Reschedule.Unlimited = true
				j.Groups[0].Tasks[0].Env = map[string]string{"V": env}
				if checks { // none of which passes
					j.Groups[0].Services = []structs.Service{{Name: "s", Checked: true}}
				}
			})})
		}
		of := func(id string) []*methods.Deployment {
			return call(t, s, methods.JobDeployments, rpc.Header{}, &methods.JobGetRequest{JobID: id}).Deployments
		}
		want := func(when, job string, want ...string) []*methods.Deployment {
			t.Helper()
			ds := of(job)
			var got []string
			for _, d := range ds {
				got = append(got, fmt.Sprint(d.Version, " ", d.Status))
			}
			if strings.Join(got, ", ") != strings.Join(want, ", ") {
				t.Fatalf("%s: deployments are %q, want %q", when, got, want)
			}
			return ds
		}
		first := submit("web", "0", false)
		ds := want("at once", "web", "0 running")
		if e := call(t, s, methods.EvalGet, rpc.Header{}, &methods.EvalGetRequest{EvalID: first.EvalID}).Eval; e.DeploymentID != ds[0].ID || e.DeploymentID.IsZero() {
			t.Errorf("the evaluation names deployment %q, want %q", e.DeploymentID, ds[0].ID)
		}
		time.Sleep(30 * time.Second)
		ds = want("healthy", "web", "0 successful")
		if g := ds[0].Groups[0]; g.Want != 2 || g.Placed != 2 || g.Healthy != 2 || g.Unhealthy != 0 || !g.AutoRevert || g.ProgressDeadline != 10*time.Minute {
			t.Errorf("its group: %+v", g)
		}

		// An update that makes no progress. Blocking reads return when it ends, and the version that returns follows.
		submit("web", "1", true)
		ds = want("an update", "web", "1 running", "0 successful")
		id := ds[0].ID
		get := func(q methods.Query) *methods.DeploymentGetResponse {
			t.Helper()
			r, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.DeploymentGet, rpc.Header{}, &methods.DeploymentGetRequest{ID: id, Query: q})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		time.Sleep(time.Minute)
		r := get(methods.Query{})
		if g := r.Deployment.Groups[0]; g.Placed != 1 || g.Healthy != 0 || g.By == 0 {
			t.Errorf("its group: %+v", g)
		}
		for n := 0; r.Deployment.Status == methods.DeploymentRunning; n++ {
			if n > 100 {
				t.Fatal("the update does not end")
			}
			before := r.Meta.Index
			if r = get(methods.Query{MinIndex: before, MaxWait: time.Minute}); r.Meta.Index < before {
				t.Fatalf("the index went from %d to %d", before, r.Meta.Index)
			}
		}
		if d := r.Deployment; d.Status != methods.DeploymentFailed || !strings.Contains(d.StatusDesc, "progress_deadline") || !strings.HasSuffix(d.StatusDesc, "auto_revert: version 0 is registered again") || d.Groups[0].Unhealthy == 0 {
			t.Errorf("%+v, %+v", d, d.Groups)
		}
		time.Sleep(time.Second) // as Nomad's client waits for it
		want("a second later", "web", "2 running", "1 failed", "0 successful")
		time.Sleep(time.Minute)
		want("reverted", "web", "2 successful", "1 failed", "0 successful")
		if as := call(t, s, methods.DeploymentAllocs, rpc.Header{}, &methods.DeploymentGetRequest{ID: id}).Allocs; len(as) == 0 || as[0].JobVersion != 1 {
			t.Errorf("allocations of the failed one: %v", as)
		}

		// Stopped by hand; on hold; followed by another version; stopped with its job.
		submit("web", "3", true)
		time.Sleep(20 * time.Second)
		id = of("web")[0].ID
		call(t, s, methods.JobWorkload, rpc.Header{}, &methods.JobWorkloadRequest{JobID: "web", Action: structs.ActionHold})
		want("held", "web", "3 paused", "2 successful", "1 failed", "0 successful")
		call(t, s, methods.JobWorkload, rpc.Header{}, &methods.JobWorkloadRequest{JobID: "web", Action: structs.ActionRelease})
		if f := call(t, s, methods.DeploymentFail, rpc.Header{}, &methods.DeploymentGetRequest{ID: id}); f.Reverts == nil || *f.Reverts != 2 {
			t.Errorf("stopping it reverts to %v", f.Reverts)
		}
		if _, err := callErr(s, methods.DeploymentFail, rpc.Header{}, &methods.DeploymentGetRequest{ID: id}); structs.CodeOf(err) != structs.CodeInvalid {
			t.Errorf("stopping it again: %v", err)
		}
		time.Sleep(2 * time.Second)
		want("stopped by hand", "web", "4 running", "3 failed", "2 successful", "1 failed", "0 successful")
		submit("web", "5", false)
		want("another version", "web", "5 running", "4 cancelled", "3 failed", "2 successful", "1 failed", "0 successful")
		call(t, s, methods.JobDeregister, rpc.Header{}, &methods.JobDeregisterRequest{JobID: "web"})
		if d := of("web")[0]; d.Version != 5 || d.Status != methods.DeploymentCancelled || d.StatusDesc != "the job was stopped" {
			t.Errorf("of a stopped job: %+v", d)
		}

		// A first version has nothing to go back to: it is said to have failed, continues, and may still become healthy.
		submit("api", "0", true)
		time.Sleep(9 * time.Minute)
		id = want("waits", "api", "0 running")[0].ID
		r = get(methods.Query{})
		r = get(methods.Query{MinIndex: r.Meta.Index + 1000, MaxWait: 10 * time.Minute}) // ends by the time, not by a change
		if d := r.Deployment; d.Status != methods.DeploymentFailed || !strings.Contains(d.StatusDesc, "no earlier version") {
			t.Errorf("%+v", d)
		}
		if _, err := callErr(s, methods.DeploymentFail, rpc.Header{}, &methods.DeploymentGetRequest{ID: id}); err == nil || !strings.Contains(err.Error(), "muster job stop api") {
			t.Errorf("stopping a first version: %v", err)
		}
		if w := submit("api", "1", false).Warnings; !strings.Contains(w, "no version of the job is stable yet") {
			t.Errorf("warnings: %q", w)
		}

		// The list: all of them, the oldest first, in pages, by prefix; a job that is no service has none.
		register(t, s, passJob("batch", 1, func(j *structs.Job) { j.Type = structs.JobBatch }))
		all := call(t, s, methods.DeploymentList, rpc.Header{}, &methods.ListRequest{}).Deployments
		var paged []*methods.Deployment
		for q := (methods.Query{PerPage: 2}); ; {
			r := call(t, s, methods.DeploymentList, rpc.Header{}, &methods.ListRequest{Query: q})
			paged = append(paged, r.Deployments...)
			if q.NextToken = r.NextToken; q.NextToken == "" {
				break
			}
		}
		if len(all) != 8 || len(paged) != 8 {
			t.Fatalf("%d deployments, %d by pages; want 8", len(all), len(paged))
		}
		for i, d := range all {
			if d.ID != paged[i].ID || i > 0 && d.JobSpecIndex <= all[i-1].JobSpecIndex {
				t.Errorf("number %d is %s of index %d", i, d.ID, d.JobSpecIndex)
			}
		}
		prefix := strings.ReplaceAll(id.String(), "-", "")[:10]
		if got := call(t, s, methods.DeploymentList, rpc.Header{}, &methods.ListRequest{Query: methods.Query{Prefix: prefix}}).Deployments; len(got) != 1 || got[0].ID != id {
			t.Errorf("by prefix: %v", got)
		}
	})
}
