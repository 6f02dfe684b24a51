package server

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestNamespaceLimits: a namespace refuses jobs that choose what it does not allow, by every call that makes a version
// run, and gives the others its defaults.
func TestNamespaceLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		h := rpc.Header{Namespace: "ml"}
		for _, p := range []structs.PoolName{"gpu", "gpu-a", "cpu"} {
			call(t, s, methods.PoolUpsert, rpc.Header{}, &methods.PoolUpsertRequest{Name: string(p), Pool: &structs.NodePool{Name: p}})
		}
		call(t, s, methods.QueueUpsert, rpc.Header{}, &methods.QueueUpsertRequest{Queues: []*structs.Queue{{Path: "research"}, {Path: "research/ml"}, {Path: "prod"}}})
		apply := func(n *structs.Namespace) {
			t.Helper()
			n.Name = "ml"
			call(t, s, methods.NamespaceUpsert, rpc.Header{}, &methods.NamespaceUpsertRequest{Namespace: n})
		}
		apply(&structs.Namespace{})
		job := func(edit func(*structs.Job)) *structs.Job {
			j := apiJob("j", 0)
			j.Namespace, j.Priority = "ml", 50
			if edit != nil {
				edit(j)
			}
			return j
		}
		cpu := func(j *structs.Job) { j.NodePool = "cpu" }
		call(t, s, methods.JobRegister, h, &methods.JobRegisterRequest{Job: job(cpu)})
		tmpl := job(nil)
		tmpl.ID, tmpl.Parameterized = "tmpl", &structs.Parameterized{}
		call(t, s, methods.JobRegister, h, &methods.JobRegisterRequest{Job: tmpl})
		apply(&structs.Namespace{MaxPriority: 60,
			NodePools:   &structs.NamespaceChoice{Default: "gpu", Allowed: []string{"gpu-*"}},
			Queues:      &structs.NamespaceChoice{Default: "research/ml", Allowed: []string{}},
			Tolerations: &structs.NamespaceChoice{Denied: []string{"dedicated*"}},
		})
		key := structs.JobKey{Namespace: "ml", ID: "j"}
		call(t, s, methods.JobRegister, h, &methods.JobRegisterRequest{Job: job(nil)})
		if j := s.Published().Snapshot.JobByKey(key); j.NodePool != "gpu" || j.Queue != "research/ml" {
			t.Fatalf("without a choice the job is in pool %q and queue %q", j.NodePool, j.Queue)
		}
		tolerate := func(k string) func(*structs.Job) {
			return func(j *structs.Job) { j.Tolerations = []structs.Toleration{{Key: k}} }
		}
		for what, c := range map[string]struct {
			edit func(*structs.Job)
			want string // part of the refusal, "" for none
		}{
			"a pool of a pattern":  {func(j *structs.Job) { j.NodePool = "gpu-a" }, ""},
			"another pool":         {cpu, `node pool "cpu" is not allowed in namespace "ml": allowed are gpu-*, gpu`},
			"every pool":           {func(j *structs.Job) { j.NodePool = "all" }, `node pool "all" is not allowed`},
			"another queue":        {func(j *structs.Job) { j.Queue = "prod" }, `queue "prod" is not allowed in namespace "ml": allowed are research/ml`},
			"a toleration":         {tolerate("spot"), ""},
			"a denied toleration":  {tolerate("dedicated-a"), `key "dedicated-a" is not allowed in namespace "ml": denied are dedicated*`},
			"a toleration of all":  {tolerate(""), `key "" is not allowed`},
			"too high a priority":  {func(j *structs.Job) { j.Priority = 61 }, `priority 61 is above the limit of namespace "ml", which is 60`},
			"the highest priority": {func(j *structs.Job) { j.Priority = 60 }, ""},
		} {
			_, reg := callErr(s, methods.JobRegister, h, &methods.JobRegisterRequest{Job: job(c.edit)})
			_, plan := callErr(s, methods.JobPlan, h, &methods.JobPlanRequest{Job: job(c.edit)})
			for call, err := range map[string]error{"register": reg, "plan": plan} {
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%s of a job with %s: %v; want %q", call, what, err, c.want)
				}
			}
		}
		for what, err := range map[string]error{
			"revert": func() error {
				_, err := callErr(s, methods.JobRevert, h, &methods.JobRevertRequest{JobID: "j"})
				return err
			}(),
			"priority": func() error {
				_, err := callErr(s, methods.JobPriority, h, &methods.JobPriorityRequest{JobID: "j", Priority: 61})
				return err
			}(),
			"dispatch": func() error {
				_, err := callErr(s, methods.JobDispatch, h, &methods.JobDispatchRequest{JobID: "tmpl", Priority: 61})
				return err
			}(),
		} {
			if structs.CodeOf(err) != structs.CodeInvalid || !strings.Contains(err.Error(), `namespace "ml"`) {
				t.Errorf("%s: %v; want it refused because of the namespace", what, err)
			}
		}
		for what, n := range map[string]*structs.Namespace{
			"both lists":               {Name: "bad", NodePools: &structs.NamespaceChoice{Allowed: []string{"a"}, Denied: []string{"b"}}},
			"a default of tolerations": {Name: "bad", Tolerations: &structs.NamespaceChoice{Default: "a"}},
			"a priority out of range":  {Name: "bad", MaxPriority: 101},
			"a queue that is no path":  {Name: "bad", Queues: &structs.NamespaceChoice{Default: "a//b"}},
		} {
			if _, err := callErr(s, methods.NamespaceUpsert, rpc.Header{}, &methods.NamespaceUpsertRequest{Namespace: n}); structs.CodeOf(err) != structs.CodeInvalid {
				t.Errorf("a namespace with %s: %v", what, err)
			}
		}
	})
}
