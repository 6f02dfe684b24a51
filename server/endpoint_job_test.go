package server

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/structs"
)

func apiJob(id string, count int) *structs.Job {
	return &structs.Job{ID: id, Type: structs.JobBatch, Groups: []*structs.Group{{
		Name: "g", Count: count, Tasks: []*structs.Task{{Name: "t", Driver: "fake", Resources: structs.Resources{CPU: 100, MemoryMiB: 64}}},
	}}}
}

func callErr[Req, Resp any](s *Server, m rpc.Method[Req, Resp], h rpc.Header, req *Req) (*Resp, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return rpc.Invoke(ctx, s.Caller(rpc.Peer{}), m, h, req)
}

func TestJobLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: testNode(1)})

		plan := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: apiJob("a", 3), Diff: true})
		if plan.Desired["g"] == nil || plan.Desired["g"].Place != 3 || len(plan.Failed) != 0 || !json.Valid(plan.Diff) {
			t.Fatalf("plan of a new job: %+v, diff %s", plan.Desired["g"], plan.Diff)
		}
		if s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "a"}) != nil {
			t.Fatal("a plan registered the job")
		}
		reg := call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("a", 3)})
		if reg.EvalID.IsZero() || reg.EvalIndex != reg.Index {
			t.Fatalf("registered: %+v", reg)
		}
		waitFor(t, 5*time.Second, "placement", func() bool {
			return len(call(t, s, methods.JobAllocs, rpc.Header{}, &methods.JobAllocsRequest{JobID: "a"}).Allocs) == 3
		})
		got := call(t, s, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "a"})
		if got.Job == nil || got.Job.Priority != 50 || got.Meta.Index != got.Job.ModifyIndex || !got.Meta.KnownLeader {
			t.Fatalf("job: %+v meta %+v", got.Job, got.Meta)
		}
		sum := call(t, s, methods.JobSummary, rpc.Header{}, &methods.JobGetRequest{JobID: "a"})
		if sum.Summary.Groups["g"].Starting != 3 {
			t.Fatalf("summary: %+v", sum.Summary)
		}

		// Scale, history, diff, tag, revert.
		four := int64(4)
		call(t, s, methods.JobScale, rpc.Header{}, &methods.JobScaleRequest{JobID: "a", Group: "g", Count: &four, Message: "more"})
		vs := call(t, s, methods.JobVersions, rpc.Header{}, &methods.JobGetRequest{JobID: "a", Diffs: true})
		if len(vs.Versions) != 2 || vs.Versions[0].Version != 1 || len(vs.Diffs) != 1 || !strings.Contains(string(vs.Diffs[0]), "Count") {
			t.Fatalf("versions: %d, diffs %s", len(vs.Versions), vs.Diffs)
		}
		call(t, s, methods.JobTag, rpc.Header{}, &methods.JobTagRequest{JobID: "a", Name: "first", Version: new(uint64)})
		if _, err := callErr(s, methods.JobRevert, rpc.Header{}, &methods.JobRevertRequest{JobID: "a", Version: 1}); structs.CodeOf(err) != structs.CodeInvalid {
			t.Fatalf("revert to the current version: %v", err)
		}
		rev := call(t, s, methods.JobRevert, rpc.Header{}, &methods.JobRevertRequest{JobID: "a", Version: 0})
		if rev.Version != 2 || s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "a"}).Groups[0].Count != 3 {
			t.Fatalf("reverted: %+v", rev)
		}
		st := call(t, s, methods.JobScaleStatus, rpc.Header{}, &methods.JobGetRequest{JobID: "a"})
		if st.Groups["g"].Desired != 3 || len(st.Groups["g"].Events) != 1 {
			t.Fatalf("scale status: %+v", st.Groups["g"])
		}

		// Dispatch.
		tmpl := apiJob("p", 1)
		tmpl.Parameterized = &structs.Parameterized{Payload: "required", MetaRequired: []string{"x"}}
		if r := call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: tmpl}); !r.EvalID.IsZero() {
			t.Fatal("a template got an evaluation")
		}
		for _, bad := range []*methods.JobDispatchRequest{
			{JobID: "p", Meta: map[string]string{"x": "1"}},
			{JobID: "p", Payload: []byte("y")},
			{JobID: "p", Payload: []byte("y"), Meta: map[string]string{"x": "1", "z": "2"}},
			{JobID: "a", Payload: []byte("y")},
			{JobID: "p", Payload: make([]byte, endpoint.PayloadMax+1), Meta: map[string]string{"x": "1"}},
		} {
			if _, err := callErr(s, methods.JobDispatch, rpc.Header{}, bad); err == nil {
				t.Fatalf("dispatch %+v was accepted", bad)
			}
		}
		d := call(t, s, methods.JobDispatch, rpc.Header{}, &methods.JobDispatchRequest{JobID: "p", Payload: []byte("y"), Meta: map[string]string{"x": "1"}, IdempotencyToken: "once"})
		if !strings.HasPrefix(d.DispatchedJobID, "p/dispatch-") || d.EvalID.IsZero() {
			t.Fatalf("dispatched: %+v", d)
		}
		again := call(t, s, methods.JobDispatch, rpc.Header{}, &methods.JobDispatchRequest{JobID: "p", Payload: []byte("y"), Meta: map[string]string{"x": "1"}, IdempotencyToken: "once"})
		if again.DispatchedJobID != d.DispatchedJobID {
			t.Fatalf("the same token dispatched %s and %s", d.DispatchedJobID, again.DispatchedJobID)
		}

		// A job that cannot be placed has a reason.
		big := apiJob("big", 1)
		big.Groups[0].Tasks[0].Resources.MemoryMiB = 1 << 20
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: big})
		waitFor(t, 5*time.Second, "reason", func() bool {
			why := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "big"})
			return len(why.Reports) > 0 && len(why.Reports[0].Refusals) > 0 && why.Position == 1
		})
		call(t, s, methods.JobDeregister, rpc.Header{}, &methods.JobDeregisterRequest{JobID: "a", Purge: true})
		if got := call(t, s, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "a"}); got.Job != nil {
			t.Fatal("the job is still there after a purge")
		}
	})
}

func TestBlockingReadWakesForItsObjectOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("b", 1)})
		time.Sleep(time.Second)
		idx := call(t, s, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "a"}).Meta.Index
		done := make(chan *methods.JobGetResponse, 1)
		go func() {
			resp, _ := callErr(s, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "a", Query: methods.Query{MinIndex: idx, MaxWait: 20 * time.Second}})
			done <- resp
		}()
		synctest.Wait()
		before := s.hub.Woken()
		bj := apiJob("b", 2)
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: bj})
		synctest.Wait()
		select {
		case r := <-done:
			t.Fatalf("a change of another job answered: %+v", r)
		default:
		}
		if s.hub.Woken() != before {
			t.Fatalf("a change of another job woke %d waiters", s.hub.Woken()-before)
		}
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("a", 2)})
		r := <-done
		if r == nil || r.Meta.Index <= idx || r.Job.Groups[0].Count != 2 {
			t.Fatalf("blocking read answered %+v", r)
		}
		// After MaxWait the answer is unchanged.
		waitQuiet(s)
		idx = call(t, s, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "a"}).Meta.Index
		began := time.Now()
		r = call(t, s, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "a", Query: methods.Query{MinIndex: idx, MaxWait: 3 * time.Second}})
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second || r.Meta.Index != idx {
			t.Fatalf("waited %s, index %d, want 3s and %d", took, r.Meta.Index, idx)
		}
	})
}

// waitQuiet waits, in virtual time, until decisions in progress have ended.
func waitQuiet(s *Server) {
	for i := s.Published().Index; ; {
		time.Sleep(time.Second)
		if n := s.Published().Index; n == i {
			return
		} else {
			i = n
		}
	}
}

func TestBadJobsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		for name, edit := range map[string]func(*structs.Job){
			"no id":          func(j *structs.Job) { j.ID = "" },
			"space in id":    func(j *structs.Job) { j.ID = "a b" },
			"long id":        func(j *structs.Job) { j.ID = strings.Repeat("x", 600) },
			"type":           func(j *structs.Job) { j.Type = "daemon" },
			"priority":       func(j *structs.Job) { j.Priority = 101 },
			"region":         func(j *structs.Job) { j.Region = "mars" },
			"namespace":      func(j *structs.Job) { j.Namespace = "nowhere" },
			"pool":           func(j *structs.Job) { j.NodePool = "nowhere" },
			"no groups":      func(j *structs.Job) { j.Groups = nil },
			"nil group":      func(j *structs.Job) { j.Groups = append(j.Groups, nil) },
			"twin groups":    func(j *structs.Job) { j.Groups = append(j.Groups, j.Groups[0]) },
			"negative count": func(j *structs.Job) { j.Groups[0].Count = -1 },
			"huge count":     func(j *structs.Job) { j.Groups[0].Count = 1 << 40 },
			"no tasks":       func(j *structs.Job) { j.Groups[0].Tasks = nil },
			"nil task":       func(j *structs.Job) { j.Groups[0].Tasks[0] = nil },
			"task path":      func(j *structs.Job) { j.Groups[0].Tasks[0].Name = "../x" },
			"task alloc":     func(j *structs.Job) { j.Groups[0].Tasks[0].Name = "alloc" },
			"no driver":      func(j *structs.Job) { j.Groups[0].Tasks[0].Driver = "" },
			"negative cpu":   func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.CPU = -1 },
			"huge memory":    func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.MemoryMiB = 1 << 62 },
			"device count": func(j *structs.Job) {
				j.Groups[0].Tasks[0].Resources.Devices = []structs.DeviceRequest{{Name: "gpu", Count: -1}}
			},
			"hook":            func(j *structs.Job) { j.Groups[0].Tasks[0].Lifecycle = &structs.Lifecycle{Hook: "never"} },
			"payload path":    func(j *structs.Job) { j.Groups[0].Tasks[0].DispatchPayload = "../../etc/passwd" },
			"nul in env":      func(j *structs.Job) { j.Groups[0].Tasks[0].Env = map[string]string{"A": "\x00"} },
			"affinity weight": func(j *structs.Job) { j.Affinities = []structs.Affinity{{LTarget: "${attr.x}", Weight: 0}} },
			"spread percent": func(j *structs.Job) {
				j.Spreads = []structs.Spread{{Attribute: "x", Targets: []structs.SpreadTarget{{Percent: 60}, {Percent: 60}}}}
			},
			"cron": func(j *structs.Job) { j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"not cron"}} },
			"time zone": func(j *structs.Job) {
				j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"* * * * *"}, TimeZone: "Mars/X"}
			},
			"periodic service": func(j *structs.Job) {
				j.Type = structs.JobService
				j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"* * * * *"}}
			},
			"bridge": func(j *structs.Job) { j.Groups[0].Networks = []structs.Network{{Mode: "bridge"}} },
			"port": func(j *structs.Job) {
				j.Groups[0].Networks = []structs.Network{{StaticPorts: []structs.Port{{Label: "a", Value: 70000}}}}
			},
			"twin ports": func(j *structs.Job) {
				j.Groups[0].Networks = []structs.Network{{DynamicPorts: []structs.Port{{Label: "a"}, {Label: "a"}}}}
			},
			"system count": func(j *structs.Job) { j.Type = structs.JobSystem; j.Groups[0].Count = 2 },
			"too big": func(j *structs.Job) {
				j.Groups[0].Tasks[0].Config = structs.RawConfig(strings.Repeat("x", structs.JobSizeMax+1))
			},
			"scaling": func(j *structs.Job) { j.Groups[0].Scaling = &structs.Scaling{Min: 5, Max: 9} },
		} {
			j := apiJob("j", 1)
			edit(j)
			_, err := callErr(s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			if c := structs.CodeOf(err); err == nil || c != structs.CodeInvalid && c != structs.CodeTooLarge {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestRevertNamesTheVersions: a version that a job cannot go back to is refused with those to which it can.
func TestRevertNamesTheVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		refused := func(version uint64, want string) {
			t.Helper()
			_, err := callErr(s, methods.JobRevert, rpc.Header{}, &methods.JobRevertRequest{JobID: "a", Version: version})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nwant %q", err, want)
			}
		}
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
		refused(0, `can't revert to current version 0; job "a" has no other version`)
		refused(7, `job "a" at version 7 not found; it runs version 0 and has no other version`)
		for count := range 2 {
			call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("a", count+2)})
		}
		refused(2, `can't revert to current version 2; job "a" can go back to 1, 0`)
		refused(7, `job "a" at version 7 not found; it runs version 2 and can go back to 1, 0`)
	})
}
