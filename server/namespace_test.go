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
		periodic := job(cpu)
		periodic.ID, periodic.Type, periodic.Periodic = "cron", structs.JobBatch, &structs.Periodic{Enabled: true, Specs: []string{"* * * * *"}}
		call(t, s, methods.JobRegister, h, &methods.JobRegisterRequest{Job: periodic})
		call(t, s, methods.JobPeriodic, h, &methods.JobGetRequest{JobID: "cron"})
		call(t, s, methods.JobDispatch, h, &methods.JobDispatchRequest{JobID: "tmpl"})
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
			"dispatch with a priority": func() error {
				_, err := callErr(s, methods.JobDispatch, h, &methods.JobDispatchRequest{JobID: "tmpl", Priority: 61})
				return err
			}(),
			"dispatch": func() error { // the job's pool is no longer allowed
				_, err := callErr(s, methods.JobDispatch, h, &methods.JobDispatchRequest{JobID: "tmpl"})
				return err
			}(),
			"forced launch": func() error {
				_, err := callErr(s, methods.JobPeriodic, h, &methods.JobGetRequest{JobID: "cron"})
				return err
			}(),
		} {
			if structs.CodeOf(err) != structs.CodeInvalid || !strings.Contains(err.Error(), `namespace "ml"`) {
				t.Errorf("%s: %v; want it refused because of the namespace", what, err)
			}
		}
		cron := structs.JobKey{Namespace: "ml", ID: "cron"}
		children := func() (n int) {
			for range s.Published().Snapshot.ChildrenOf(cron) {
				n++
			}
			return n
		}
		before := children()
		time.Sleep(3 * time.Minute)
		why := call(t, s, methods.JobWhy, h, &methods.JobGetRequest{JobID: "cron"})
		if n := children(); n != before || !strings.Contains(why.Refused, `node pool "cpu" is not allowed in namespace "ml"`) {
			t.Errorf("%d launches of a job that the namespace no longer allows; why says %q", n-before, why.Refused)
		}
		apply(&structs.Namespace{})
		time.Sleep(90 * time.Second)
		if n := children(); n == before || n > before+2 {
			t.Errorf("%d launches in 90 s after the namespace allowed the job again", n-before)
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

// TestScaleNeedsQueue: more allocations are charged to a job's queue, so the caller needs the right to submit to it.
func TestScaleNeedsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(_ int, cfg *Config) { cfg.ACL = true })
		root := c.bootstrapACL(c.leader())
		s, admin := c.servers[c.leader()], rpc.Header{Token: root.String()}
		call(t, s, methods.QueueUpsert, admin, &methods.QueueUpsertRequest{Queues: []*structs.Queue{{Path: "research"}}})
		j := apiJob("j", 1)
		j.Queue = "research"
		call(t, s, methods.JobRegister, admin, &methods.JobRegisterRequest{Job: j})
		scale := "namespace \"default\" { policy = \"scale\" }\n"
		two := int64(2)
		for who, rules := range map[string]string{
			"none":  scale,
			"read":  scale + `queue "*" { policy = "read" }`,
			"write": scale + `queue "research" { policy = "write" }`,
		} {
			h := rpc.Header{Token: c.tokenWith(root, who, rules).String()}
			_, err := callErr(s, methods.JobScale, h, &methods.JobScaleRequest{JobID: "j", Group: "g", Count: &two})
			if denied := structs.CodeOf(err) == structs.CodeDenied && err != nil; denied != (who == "read") || err != nil && !denied {
				t.Errorf("scaling with rule %q of the queue: %v", who, err)
			}
			if _, err := callErr(s, methods.JobScale, h, &methods.JobScaleRequest{JobID: "j", Group: "g", Message: "a note"}); err != nil {
				t.Errorf("a message without a count with rule %q of the queue: %v", who, err)
			}
		}
	})
}
