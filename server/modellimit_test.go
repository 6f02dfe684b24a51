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

// twoModels is a fleet of a node with two H100 and one with two A100.
func twoModels(t *testing.T, s *Server) *fleet {
	f := newGPUFleet(t, s, 2)
	n := testNode(1)
	g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "A100"}
	for i := range 2 {
		g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprint("GPU-A", i), Healthy: true, MemoryMiB: 40960})
	}
	n.Resources.Devices = []structs.DeviceGroup{g}
	mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
	mustApply(t, s, &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
	f.set(func() { f.nodes = append(f.nodes, n) })
	return f
}

// ofModel submits a batch job of one GPU of a model; "" for any.
func (f *fleet) ofModel(namespace, id string, queue structs.QueuePath, gpu string, runs time.Duration) {
	f.t.Helper()
	f.set(func() { f.runs[id] = runs })
	j := passJob(id, 1, func(j *structs.Job) {
		j.Namespace, j.Type, j.Queue, j.Runtime.Limit, j.Groups[0].Reschedule = namespace, structs.JobBatch, queue, runs, structs.Reschedule{}
		j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1, Model: gpu}}
	})
	call(f.t, f.s(), methods.JobRegister, rpc.Header{Namespace: namespace}, &methods.JobRegisterRequest{Job: j})
	time.Sleep(5 * time.Second)
}

// TestModelLimits: a queue and a quota limit the GPUs of a model that they hold. A job of the model waits with that reason
// until one of them is given back, one that takes any model gets another, and what is held is counted by model.
func TestModelLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := twoModels(t, s)
		why := func(namespace, id string) (text string) {
			r := call(t, s, methods.JobWhy, rpc.Header{Namespace: namespace}, &methods.JobGetRequest{JobID: id})
			for _, g := range r.Reports {
				for _, x := range g.Refusals {
					text += string(x.Code) + " " + x.Text() + ", " + x.ShortText() + "\n"
				}
			}
			return text
		}
		f.ofModel("default", "before", "", "H100", 10*time.Minute) // it is counted when the first limit by model is set
		resp := call(t, s, methods.QueueUpsert, rpc.Header{}, &methods.QueueUpsertRequest{Queues: []*structs.Queue{{Path: structs.QueueRoot, LimitModels: []structs.ModelAmount{{Model: "h100", Milli: 2000}}},
			{Path: "lab", LimitModels: []structs.ModelAmount{{Model: "A10O", Milli: 1000}, {Model: "H100", Milli: 1000}}}, {Path: "lab/a"}}})
		if len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], `queue lab: no node has a GPU of model "A10O"; did you mean "A100"?`) {
			t.Errorf("warnings: %q", resp.Warnings)
		}
		f.ofModel("default", "one", "lab/a", "H100", time.Hour)
		f.ofModel("default", "two", "lab", "H100", 30*time.Minute)
		f.ofModel("default", "any", "lab", "", time.Hour)
		f.ofModel("default", "root", "", "H100", time.Hour)
		for id, want := range map[string]int{"before": 1, "one": 1, "two": 0, "any": 1, "root": 0} {
			if got := running(s, id); got != want {
				t.Errorf("%d of %s run, want %d: %s", got, id, want, why("default", id))
			}
		}
		// The limit of the root is reached, too, and is named first.
		if got := why("default", "two"); got != "QUOTA queue root: GPUs of model h100, 1 GPU\n" {
			t.Errorf("the second waits: %s", got)
		}
		if got := why("default", "root"); got != "QUOTA queue root: GPUs of model h100, 1 GPU\n" {
			t.Errorf("that in the default queue waits: %s", got)
		}
		snap := s.Published().Snapshot
		if u := snap.QueueUse("lab", ""); fmt.Sprint(u.Models) != "[{A100 1000} {H100 1000}]" {
			t.Errorf("queue lab holds %v", u.Models)
		}
		if why := snap.CheckUse(); why != "" {
			t.Error(why)
		}
		list := call(t, s, methods.QueueList, rpc.Header{}, &methods.ListRequest{})
		for _, it := range list.Items {
			if it.Workload.JobID == "two" && it.StartEst == 0 && it.Workload.StartEst == 0 {
				t.Error("the second has no estimated start")
			}
		}
		time.Sleep(20 * time.Minute) // "before" has ended: the root has room, the queue has none
		if running(s, "root") != 1 || running(s, "two") != 0 {
			t.Errorf("after the first has ended: %d and %d run; %s", running(s, "root"), running(s, "two"), why("default", "root"))
		}
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot}}})
		time.Sleep(5 * time.Second)
		if got := why("default", "two"); got != "QUOTA queue lab: GPUs of model H100, 1 GPU\n" {
			t.Errorf("without the limit of the root the second waits: %s", got)
		}
		time.Sleep(2 * time.Hour)
		if running(s, "two") != 0 || s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "two"}).Status != structs.JobDead {
			t.Error("the second has not run")
		}

		mustApply(t, s, &structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "q", Limits: []structs.QuotaLimit{{Region: "global", Hard: structs.Unlimited, HardModels: []structs.ModelAmount{{Model: "A100", Milli: 1000}}}}}}})
		mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "ml", Quota: "q"}, {Name: "cv", Quota: "q"}}})
		f.ofModel("ml", "first", "", "A100", time.Hour)
		f.ofModel("cv", "second", "", "A100", time.Hour)
		if got := why("cv", "second"); got != "QUOTA quota q: GPUs of model A100, 1 GPU\n" {
			t.Errorf("the second of the quota waits: %s", got)
		}
		st := call(t, s, methods.QuotaGet, rpc.Header{}, &methods.NameRequest{Name: "q"})
		if fmt.Sprint(st.Quota.Models) != "[{A100 1000}]" {
			t.Errorf("the quota holds %v", st.Quota.Models)
		}
		if why := s.Published().Snapshot.CheckUse(); why != "" {
			t.Error(why)
		}
	})
}

// TestModelLimitsSoft: beyond the soft limit of a GPU model, of a queue or of a quota, work of the model comes after other
// work, and starts at once where there is room.
func TestModelLimitsSoft(t *testing.T) {
	for name, set := range map[string]func(*testing.T, *Server){
		"queue": func(t *testing.T, s *Server) {
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "soft", SoftLimitModels: []structs.ModelAmount{{Model: "H100", Milli: 1000}}}}})
		},
		"quota": func(t *testing.T, s *Server) {
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "soft"}}})
			mustApply(t, s, &structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "q", Limits: []structs.QuotaLimit{{Region: "global", Hard: structs.Unlimited, SoftModels: []structs.ModelAmount{{Model: "H100", Milli: 1000}}}}}}})
			mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "ml", Quota: "q"}}})
		},
		"none": func(t *testing.T, s *Server) {
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "soft"}}})
			mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "ml"}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testServer(t, nil)
				f := twoModels(t, s)
				set(t, s)
				namespace := "default"
				if name != "queue" {
					mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "ml", Quota: map[string]string{"quota": "q"}[name]}}})
					namespace = "ml"
				}
				f.ofModel(namespace, "first", "soft", "H100", time.Hour)
				f.ofModel(namespace, "second", "soft", "H100", 2*time.Hour)
				f.ofModel(namespace, "third", "soft", "H100", 10*time.Minute)
				f.ofModel("default", "later", "", "H100", 20*time.Minute)
				if running(s, "later") != 0 {
					t.Fatal("the GPUs are not full")
				}
				time.Sleep(time.Hour + time.Minute)
				began := func(ns, id string) (at structs.LogTime) {
					for _, a := range s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: ns, ID: id}) {
						at = max(at, a.StartedAt)
					}
					return at
				}
				if third, later := began(namespace, "third"), began("default", "later"); (later > 0 && (third == 0 || later < third)) != (name != "none") {
					t.Errorf("the third of the queue began at %v, that of others at %v", third.Time(), later.Time())
				}
			})
		})
	}
}
