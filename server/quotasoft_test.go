package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestQuotaSoft: on an unconfigured server a short job takes the place of a long preemptible one. Beyond the soft limit of
// its namespace's quota it does not; when the place is free, work of other namespaces that came later goes first, and the
// list of waiting work says so.
func TestQuotaSoft(t *testing.T) {
	for name, soft := range map[string]int64{"beyond the limit": 10, "below it": 100_000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testServer(t, nil)
				f := newFleet(t, one(s), 1)
				size := f.nodes[0].Resources.CPU * 2 / 3
				most := structs.Unlimited
				most.CPU = soft
				mustApply(t, s, &structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "q", Limits: []structs.QuotaLimit{{Region: "global", Hard: structs.Unlimited, Soft: &most}}}}})
				mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "ml", Quota: "q"}}})
				submit := func(namespace, id string, runs time.Duration) structs.JobKey {
					f.set(func() { f.runs[id] = runs })
					j := passJob(id, 1, func(j *structs.Job) {
						j.Namespace, j.Type, j.Preemptible, j.Runtime.Expected = namespace, structs.JobBatch, true, runs
						j.Groups[0].Reschedule, j.Groups[0].Tasks[0].Resources.CPU = structs.Reschedule{}, size
					})
					call(t, s, methods.JobRegister, rpc.Header{Namespace: namespace}, &methods.JobRegisterRequest{Job: j})
					return j.Key()
				}
				began := func(k structs.JobKey) (at structs.LogTime) {
					for _, a := range s.Published().Snapshot.AllocsByJob(k) {
						at = max(at, a.StartedAt)
					}
					return at
				}
				submit("default", "long", time.Hour)
				time.Sleep(90 * time.Second)
				short := submit("ml", "short", 20*time.Minute)
				time.Sleep(2 * time.Minute)
				if took := began(short) > 0; took != (soft > 10) {
					t.Fatalf("the short job took the place of the long one: %v", took)
				}
				if soft > 10 {
					return
				}
				later := submit("default", "later", 2*time.Hour)
				time.Sleep(time.Second)
				list := call(t, s, methods.QueueList, rpc.Header{Namespace: "*"}, &methods.ListRequest{})
				if len(list.Items) != 2 || list.Items[0].Workload.JobID != "later" {
					t.Errorf("the list of waiting work begins with %q", list.Items[0].Workload.JobID)
				}
				time.Sleep(2 * time.Hour)
				if a, b := began(later), began(short); a == 0 || b != 0 {
					t.Errorf("after two hours the work within its limits began at %v, that beyond its soft limit at %v", a.Time(), b.Time())
				}
				time.Sleep(2 * time.Hour)
				if began(short) == 0 {
					t.Error("the work beyond its soft limit did not start in an idle cluster")
				}
			})
		})
	}
}
