package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestRefusalsOfRegistration: what an operator configures to be refused is refused, and without the setting it is not.
func TestRefusalsOfRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		root := rpc.Header{Token: c.bootstrapACL(lead).String()}
		s := c.servers[lead]
		call(t, s, methods.ACLPolicyUpsert, root, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{{Name: "user", Rules: `namespace "*" { policy = "write" }`}}})
		user := rpc.Header{Token: call(t, s, methods.ACLTokenUpsert, root, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenClient, Policies: []string{"user"}}}).Token.Secret.String()}
		user.Namespace = "ml"
		job := func() *structs.Job {
			j := apiJob("j", 1)
			j.Namespace = "ml"
			return j
		}
		driver := job().Groups[0].Tasks[0].Driver
		for name, with := range map[string]struct {
			ns   structs.Namespace
			cfg  structs.SchedulerConfig
			want string
		}{
			"no setting":                     {},
			"SchedulerConfig.RejectRegister": {cfg: structs.SchedulerConfig{RejectRegister: true}, want: "regist"},
			"Namespace.EnabledDrivers":       {ns: structs.Namespace{EnabledDrivers: []string{"other"}}, want: driver},
			"Namespace.DisabledDrivers":      {ns: structs.Namespace{DisabledDrivers: []string{driver}}, want: driver},
		} {
			with.ns.Name = "ml"
			call(t, s, methods.NamespaceUpsert, root, &methods.NamespaceUpsertRequest{Namespace: &with.ns})
			mustApply(t, s, &structs.SchedulerConfigCommand{Config: &with.cfg})
			_, err := callErr(s, methods.JobRegister, user, &methods.JobRegisterRequest{Job: job()})
			if with.want == "" && err != nil || with.want != "" && (err == nil || !strings.Contains(err.Error(), with.want)) {
				t.Errorf("%s: %v, want %q", name, err, with.want)
			}
		}
	})
}

// TestSettingsWithoutEffectAreRefused: what would do nothing is refused with a sentence that names it.
func TestSettingsWithoutEffectAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		for name, q := range map[string]structs.Queue{
			"running_user_max": {RunningUserMax: 1}, "submitted_user_max": {SubmittedUserMax: 1}, "gpu_minutes_user_max": {GPUMinutesUserMax: 1},
			"user_limit": {UserLimit: &structs.Amount{}}, "gpu_hours_user_max": {GPUHoursUserMax: 1},
		} {
			q.Path = structs.QueueRoot
			if _, err := callErr(s, methods.QueueUpsert, rpc.Header{}, &methods.QueueUpsertRequest{Queues: []*structs.Queue{&q}}); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s of the root: %v", name, err)
			}
			q.Path = "lab"
			call(t, s, methods.QueueUpsert, rpc.Header{}, &methods.QueueUpsertRequest{Queues: []*structs.Queue{&q}})
		}
		limited := structs.SchedulerConfig{NodeLimit: 9}
		set := func() error {
			_, err := callErr(s, methods.SchedulerConfigSet, rpc.Header{}, &methods.SchedulerConfigRequest{Config: &limited})
			return err
		}
		if err := set(); err == nil || !strings.Contains(err.Error(), "NodeLimitForFeasibilityChecks is 9") {
			t.Errorf("SchedulerConfig.NodeLimit: %v", err)
		}
		mustApply(t, s, &structs.SchedulerConfigCommand{Config: &limited}) // as an older release did
		if err := set(); err != nil {
			t.Errorf("what was stored cannot be written back: %v", err)
		}
	})
}

// outcomes are scenarios with one setting of a job, a pool, a queue, a quota or the scheduler. Each says what came out of it
// without the setting, and with it. They run in a bubble.
func outcomes() map[string]func(t *testing.T, s *Server, with bool) string {
	return map[string]func(t *testing.T, s *Server, with bool) string{
		"Job.Parameterized": func(t *testing.T, s *Server, with bool) string {
			return placedOn(t, s, passJob("w", 1, func(j *structs.Job) {
				if j.Type = structs.JobBatch; with {
					j.Parameterized = &structs.Parameterized{}
				}
			}))
		},
		"Parameterized.Payload": func(t *testing.T, s *Server, with bool) string {
			return dispatched(t, s, &structs.Parameterized{Payload: either(with, "forbidden", "optional")}, nil)
		},
		"Parameterized.MetaOptional": func(t *testing.T, s *Server, with bool) string {
			return dispatched(t, s, &structs.Parameterized{MetaOptional: either(with, []string{"x"}, nil)}, map[string]string{"x": "1"})
		},
		"Parameterized.MetaRequired": func(t *testing.T, s *Server, with bool) string {
			return dispatched(t, s, &structs.Parameterized{MetaOptional: []string{"x"}, MetaRequired: either(with, []string{"y"}, nil)}, map[string]string{"x": "1"})
		},
		"Periodic.Enabled": func(t *testing.T, s *Server, with bool) string {
			return launched(t, s, &structs.Periodic{Enabled: with, Specs: []string{"30 * * * *"}})
		},
		"Periodic.TimeZone": func(t *testing.T, s *Server, with bool) string { // the clock begins at midnight in UTC
			return launched(t, s, &structs.Periodic{Enabled: true, Specs: []string{"30 0 * * *"}, TimeZone: either(with, "Asia/Tokyo", "UTC")})
		},
		"Job.Placement": func(t *testing.T, s *Server, with bool) string {
			j := pooled(t, s, structs.NodePool{}, 1)
			j.Placement = either(with, "spread", "binpack")
			return placedOn(t, s, j)
		},
		"NodePool.Algorithm": func(t *testing.T, s *Server, with bool) string {
			return placedOn(t, s, pooled(t, s, structs.NodePool{Algorithm: either(with, "spread", "binpack")}, 1))
		},
		"NodePool.Weights": func(t *testing.T, s *Server, with bool) string {
			return placedOn(t, s, pooled(t, s, structs.NodePool{Algorithm: "binpack", Weights: structs.ScoreWeights{Fit: either[int64](with, structs.WeightOff, 0), Cost: either[int64](with, 100, 0)}}, 1))
		},
		"NodePool.MaxCheckpoints": func(t *testing.T, s *Server, with bool) string {
			return turns(t, s, pooled(t, s, structs.NodePool{MaxCheckpoints: either[int64](with, 1, 2)}, 4), structs.SchedulerConfig{}, "")
		},
		"SchedulerConfig.MaxCheckpoints": func(t *testing.T, s *Server, with bool) string {
			return turns(t, s, passJob("w", 4, nil), structs.SchedulerConfig{MaxCheckpoints: either[int64](with, 1, 2)}, "")
		},
		"SchedulerConfig.CheckpointStorage": func(t *testing.T, s *Server, with bool) string {
			return turns(t, s, passJob("w", 4, nil), structs.SchedulerConfig{CheckpointStorage: map[string]int64{"lustre": either[int64](with, 1, 2)}}, "lustre")
		},
		"Checkpoint.Storage": func(t *testing.T, s *Server, with bool) string {
			return turns(t, s, passJob("w", 4, nil), structs.SchedulerConfig{MaxCheckpoints: 3, CheckpointStorage: map[string]int64{"lustre": 1}}, either(with, "lustre", ""))
		},
		"QuotaLimit.Hard": func(t *testing.T, s *Server, with bool) string {
			return placedOn(t, s, within(t, s, "global", structs.Amount{GPUMilli: structs.AmountNoLimit, GPUMemoryMiB: structs.AmountNoLimit, CPU: either[int64](with, 150, 250), MemoryMiB: structs.AmountNoLimit}))
		},
		"QuotaLimit.Region": func(t *testing.T, s *Server, with bool) string {
			return placedOn(t, s, within(t, s, either(with, "elsewhere", "global"), structs.Amount{}))
		},
		"Amount.CPU":          limitedTo(func(a *structs.Amount) { a.CPU = 150 }),
		"Amount.MemoryMiB":    limitedTo(func(a *structs.Amount) { a.MemoryMiB = 100 }),
		"Amount.GPUMilli":     limitedTo(func(a *structs.Amount) { a.GPUMilli = 1000 }),
		"Amount.GPUMemoryMiB": limitedTo(func(a *structs.Amount) { a.GPUMemoryMiB = 81920 }),
		"Queue.SubmittedUserMax": func(t *testing.T, s *Server, with bool) string {
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "lab", SubmittedUserMax: either[int64](with, 1, 0)}}})
			said := ""
			for _, user := range []string{"ann", "bob", "ann"} {
				j := passJob(user+fmt.Sprint(len(said)), 1, func(j *structs.Job) { j.Queue = "lab" })
				_, err := s.apply(t.Context(), replica.LaneUser, structs.Command{By: structs.Submitter{Name: user}, Body: &structs.JobRegisterCommand{Job: j, Eval: true}})
				said += fmt.Sprintln(user, err)
			}
			return said
		},
		"Group.Scaling": func(t *testing.T, s *Server, with bool) string {
			return scaled(t, s, either(with, &structs.Scaling{Max: 3}, nil), 4)
		},
		"Scaling.Max": func(t *testing.T, s *Server, with bool) string {
			return scaled(t, s, &structs.Scaling{Max: either[int64](with, 3, 4)}, 4)
		},
		"Scaling.Min": func(t *testing.T, s *Server, with bool) string {
			return scaled(t, s, &structs.Scaling{Max: 9, Min: either[int64](with, 2, 1)}, 1)
		},
	}
}

// TestWitnessesOfServers: each setting of which servers are to make something changes what comes out.
// internal/lint/testdata/witnesses.txt has the rows of all fields.
func TestWitnessesOfServers(t *testing.T) {
	var names []string
	synctest.Test(t, func(*testing.T) { names = slices.Sorted(maps.Keys(outcomes())) })
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			var said [3]string
			for i := range said {
				synctest.Test(t, func(t *testing.T) { said[i] = outcomes()[name](t, testServer(t, nil), i == 0) })
			}
			if said[1] != said[2] {
				t.Errorf("two runs differ:\n%s\n%s", said[1], said[2])
			}
			if said[0] == said[1] {
				t.Errorf("%s changes nothing: it is inert, or its row sets it where it does not matter:\n%s", name, said[0])
			}
		})
	}
}

// TestValuesOfPayload: the three values of parameterized.payload differ in which dispatches they refuse.
func TestValuesOfPayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, seen := testServer(t, nil), map[string]string{}
		for _, v := range []string{"optional", "required", "forbidden"} {
			job := apiJob("w-"+v, 1)
			job.Parameterized = &structs.Parameterized{Payload: v}
			call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: job})
			said := ""
			for _, payload := range []string{"", "y"} {
				_, err := callErr(s, methods.JobDispatch, rpc.Header{}, &methods.JobDispatchRequest{JobID: job.ID, Payload: []byte(payload)})
				said += fmt.Sprint(err == nil, " ")
			}
			if seen[said] != "" {
				t.Errorf("%s does what %s does: %s", v, seen[said], said)
			}
			seen[said] = v
		}
	})
}

func either[T any](with bool, yes, no T) T {
	if with {
		return yes
	}
	return no
}

// placedOn runs a job on two nodes, and returns the names of the nodes of its allocations.
func placedOn(t *testing.T, s *Server, j *structs.Job) string {
	t.Helper()
	if len(slices.Collect(s.Published().Snapshot.Nodes())) == 0 {
		newFleet(t, one(s), 2)
	}
	time.Sleep(time.Second) // until decisions know the nodes
	register(t, s, j)
	waitQuiet(s)
	var on []string
	for _, a := range live(s, j.ID) {
		on = append(on, s.Published().Snapshot.NodeByID(a.NodeID).Name)
	}
	slices.Sort(on)
	return strings.Join(on, " ")
}

// dispatched says what becomes of a dispatch with a payload.
func dispatched(t *testing.T, s *Server, p *structs.Parameterized, meta map[string]string) string {
	t.Helper()
	job := apiJob("w", 1)
	job.Parameterized = p
	call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: job})
	_, err := callErr(s, methods.JobDispatch, rpc.Header{}, &methods.JobDispatchRequest{JobID: "w", Payload: []byte("y"), Meta: meta})
	return fmt.Sprint(err)
}

// launched returns how many children a periodic job has after half an hour.
func launched(t *testing.T, s *Server, p *structs.Periodic) string {
	t.Helper()
	mustApply(t, s, &structs.JobRegisterCommand{Job: passJob("w", 1, func(j *structs.Job) { j.Type, j.Periodic = structs.JobBatch, p })})
	time.Sleep(31 * time.Minute)
	n := 0
	for range s.Published().Snapshot.ChildrenOf(structs.JobKey{Namespace: "default", ID: "w"}) {
		n++
	}
	return fmt.Sprint(n)
}

// pooled is a job of n allocations in a pool with two nodes, of which the second is cheap and the first has work already.
func pooled(t *testing.T, s *Server, p structs.NodePool, n int) *structs.Job {
	t.Helper()
	p.Name = "lab"
	mustApply(t, s, &structs.PoolUpsertCommand{Pools: []*structs.NodePool{&p}})
	f := newFleet(t, one(s), 0)
	for i, cost := range []string{"9", "1"} {
		x := testNode(i)
		x.Pool, x.Meta = p.Name, map[string]string{structs.CostKey: cost}
		mustApply(t, s, &structs.NodeRegisterCommand{Node: x})
		mustApply(t, s, &structs.NodeStatusCommand{ID: x.ID, Status: structs.NodeReady})
		f.set(func() { f.nodes = append(f.nodes, x) })
	}
	in := func(j *structs.Job) { j.NodePool = p.Name }
	placedOn(t, s, passJob("before", 1, func(j *structs.Job) {
		in(j)
		j.Constraints = []structs.Constraint{{LTarget: "${node.unique.name}", Operand: "=", RTarget: "node-0"}}
	}))
	return passJob("w", n, in)
}

// turns returns how many of a job's allocations may save their state at once.
func turns(t *testing.T, s *Server, j *structs.Job, cfg structs.SchedulerConfig, storage string) string {
	t.Helper()
	j.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Storage: storage}
	mustApply(t, s, &structs.SchedulerConfigCommand{Config: &cfg})
	placedOn(t, s, j)
	waitFor(t, time.Minute, "the job to run", func() bool { return running(s, j.ID) == j.Groups[0].Count })
	var ids []structs.AllocID
	for _, a := range live(s, j.ID) {
		ids = append(ids, a.ID)
	}
	mustApply(t, s, &structs.AllocTransitionCommand{IDs: ids, Transition: structs.Transition{Migrate: true, Leave: true}, Trigger: structs.TriggerNodeDrain})
	waitFor(t, time.Minute, "the end to be asked for", func() bool { return len(checkpoint.NewLine(s.Published().Snapshot).Of) == len(ids) })
	now := 0
	for _, u := range checkpoint.NewLine(s.Published().Snapshot).Of {
		if u.Now {
			now++
		}
	}
	return fmt.Sprint(now)
}

// within is a job of three allocations in a namespace with a quota.
func within(t *testing.T, s *Server, region string, hard structs.Amount) *structs.Job {
	t.Helper()
	mustApply(t, s, &structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "q", Limits: []structs.QuotaLimit{{Region: region, Hard: hard}}}}})
	mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "default", Quota: "q"}}})
	return passJob("w", 3, nil)
}

// limitedTo is a queue with a limit, and a job of two allocations with a GPU each.
func limitedTo(set func(a *structs.Amount)) func(t *testing.T, s *Server, with bool) string {
	return func(t *testing.T, s *Server, with bool) string {
		t.Helper()
		limit := structs.Unlimited
		if with {
			set(&limit)
		}
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "lab", Limit: &limit}}})
		newGPUFleet(t, s, 4)
		return placedOn(t, s, passJob("w", 2, func(j *structs.Job) {
			j.Queue = "lab"
			j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
		}))
	}
}

// scaled says what becomes of the wish for another count.
func scaled(t *testing.T, s *Server, p *structs.Scaling, count int64) string {
	t.Helper()
	job := apiJob("w", 2)
	job.Groups[0].Scaling = p
	call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: job})
	_, err := callErr(s, methods.JobScale, rpc.Header{}, &methods.JobScaleRequest{JobID: "w", Group: "g", Count: &count})
	return fmt.Sprint(err)
}
