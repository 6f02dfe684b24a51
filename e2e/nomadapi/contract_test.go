package nomadapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// TestContract drives one agent through everything that clients of Nomad do with jobs, nodes and the cluster.
func TestContract(t *testing.T) {
	a := start(t, nil)
	node := a.ready(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *agent, *api.NodeListStub)
	}{
		{"Headers", headers}, {"JobLife", jobLife}, {"Lists", lists}, {"Blocking", blocking}, {"Versions", versions}, {"Deployments", deployments}, {"Scale", scale},
		{"Dispatch", dispatch}, {"Periodic", periodic}, {"Full", full}, {"LogsAndFiles", logsAndFiles}, {"Exec", execs},
		{"Lifecycle", lifecycle}, {"Events", events}, {"Services", services}, {"Search", searches}, {"Namespaces", namespaces}, {"Pools", pools},
		{"Operator", operator}, {"Agent", agentSelf}, {"Nodes", nodes}, {"Keyring", rootKeyring}, {"Snapshot", snapshot},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, a, node) })
	}
}

func headers(t *testing.T, a *agent, _ *api.NodeListStub) {
	resp, err := http.Get(a.addr + "/v1/nodes")
	ok(t, err)
	defer resp.Body.Close()
	for h, want := range map[string]string{"X-Nomad-KnownLeader": "true", "X-Nomad-LastContact": "0", "Content-Type": "application/json"} {
		equal(t, h, resp.Header.Get(h), want)
	}
	check(t, resp.Header.Get("X-Nomad-Index") > "0", "X-Nomad-Index is %q", resp.Header.Get("X-Nomad-Index"))
	for path, want := range map[string]int{"/v1/nope": 404, "/v1/job/none": 404, "/v1/jobs?index=x": 400, "/v1/jobs?wait=x": 400, "/v1/jobs?per_page=-1": 400, "/v1/jobs?filter=((": 400, "/v1/allocation/zz": 404} {
		r, err := http.Get(a.addr + path)
		ok(t, err)
		r.Body.Close()
		equal(t, "status of "+path, r.StatusCode, want)
	}
	r, err := http.Post(a.addr+"/v1/nodes", "application/json", strings.NewReader("{}"))
	ok(t, err)
	r.Body.Close()
	equal(t, "POST to a list of nodes", r.StatusCode, 405)
	check(t, strings.Contains(r.Header.Get("Allow"), "GET"), "Allow is %q", r.Header.Get("Allow"))
}

func jobLife(t *testing.T, a *agent, node *api.NodeListStub) {
	jobs := a.Jobs()
	job := shell("life", "service", "sleep 300")
	plan, _, err := jobs.Plan(job, true, nil)
	ok(t, err)
	equal(t, "diff type of a new job", plan.Diff.Type, "Added")
	equal(t, "placements planned", plan.Annotations.DesiredTGUpdates["g"].Place, 1)
	equal(t, "modify index of a job that is not there", plan.JobModifyIndex, 0)

	alloc := a.run(t, job, "running")
	equal(t, "node", alloc.NodeID, node.ID)
	equal(t, "name", alloc.Name, "life.g[0]")
	equal(t, "nodes evaluated", alloc.Metrics.NodesEvaluated, 1)
	check(t, len(alloc.Metrics.ScoreMetaData) > 0, "the allocation's metric has no scores")
	check(t, alloc.Metrics.NodesAvailable["dc1"] == 1, "nodes available: %v", alloc.Metrics.NodesAvailable)
	check(t, slices.ContainsFunc(alloc.TaskStates["main"].Events, func(e *api.TaskEvent) bool { return e.Type == api.TaskStarted }), "no Started event")

	info, qm, err := jobs.Info("life", nil)
	ok(t, err)
	equal(t, "status", *info.Status, "running")
	equal(t, "node pool", *info.NodePool, "default")
	check(t, qm.LastIndex > 0 && qm.KnownLeader, "meta %+v", qm)

	// The same job again changes nothing; a new argument replaces the allocation; a new count does not.
	plan, _, err = jobs.Plan(job, true, nil)
	ok(t, err)
	equal(t, "diff of the same job", plan.Diff.Type, "None")
	job.TaskGroups[0].Tasks[0].Config["args"] = []string{"-c", "sleep 301"}
	plan, _, err = jobs.Plan(job, true, nil)
	ok(t, err)
	equal(t, "diff type", plan.Diff.Type, "Edited")
	equal(t, "destructive updates", plan.Annotations.DesiredTGUpdates["g"].DestructiveUpdate, 1)
	equal(t, "modify index", plan.JobModifyIndex, *info.JobModifyIndex)

	// Check and set.
	_, _, err = jobs.EnforceRegister(job, *info.JobModifyIndex+1, nil)
	check(t, err != nil && strings.Contains(err.Error(), api.RegisterEnforceIndexErrPrefix), "a stale index was accepted: %v", err)
	_, _, err = jobs.EnforceRegister(job, *info.JobModifyIndex, nil)
	ok(t, err)
	eventually(t, "the replacement", func() error {
		stubs, _, err := jobs.Allocations("life", false, nil)
		if err != nil {
			return err
		}
		for _, s := range stubs {
			if s.JobVersion == 1 && s.ClientStatus == "running" {
				return nil
			}
		}
		return errors.New("not running")
	})

	eventually(t, "the summary", func() error {
		sum, _, err := jobs.Summary("life", nil)
		if err != nil {
			return err
		}
		if g := sum.Summary["g"]; g.Running != 1 || g.Complete != 1 {
			return fmt.Errorf("%+v", g)
		}
		return nil
	})
	evals, _, err := jobs.Evaluations("life", nil)
	ok(t, err)
	check(t, len(evals) >= 2, "%d evaluations", len(evals))
	evalID, _, err := jobs.ForceEvaluate("life", nil)
	ok(t, err)
	eventually(t, "the forced evaluation", func() error {
		e, _, err := a.Evaluations().Info(evalID, nil)
		if err != nil {
			return err
		}
		if e.Status != "complete" {
			return errors.New(e.Status)
		}
		return nil
	})
	val, _, err := jobs.Validate(shell("", "service", "true"), nil)
	ok(t, err)
	check(t, len(val.ValidationErrors) > 0 && val.Error != "", "a job without an id is valid: %+v", val)

	_, _, err = jobs.Deregister("life", false, nil)
	ok(t, err)
	eventually(t, "the job to be dead", func() error {
		info, _, err := jobs.Info("life", nil)
		if err != nil {
			return err
		}
		if *info.Status != "dead" || !*info.Stop {
			return errors.New(*info.Status)
		}
		stubs, _, err := jobs.Allocations("life", true, nil)
		if err != nil {
			return err
		}
		for _, s := range stubs {
			if s.ClientStatus != "complete" {
				return errors.New(s.ClientStatus)
			}
		}
		return nil
	})
	_, _, err = jobs.Deregister("life", true, nil)
	ok(t, err)
	_, _, err = jobs.Info("life", nil)
	equal(t, "status after a purge", status(err), 404)
}

func lists(t *testing.T, a *agent, _ *api.NodeListStub) {
	for i := range 5 {
		j := shell(fmt.Sprintf("list-%d", i), "batch", "true")
		j.Meta = map[string]string{"even": fmt.Sprint(i%2 == 0)}
		_, _, err := a.Jobs().Register(j, nil)
		ok(t, err)
	}
	var seen []string
	q := &api.QueryOptions{Prefix: "list-", PerPage: 2}
	for pages := 0; ; pages++ {
		page, qm, err := a.Jobs().List(q)
		ok(t, err)
		check(t, len(page) <= 2, "a page has %d jobs", len(page))
		for _, j := range page {
			seen = append(seen, j.ID)
		}
		if q.NextToken = qm.NextToken; q.NextToken == "" {
			break
		}
		if pages > 5 {
			t.Fatal("pages never end")
		}
	}
	check(t, slices.Equal(seen, []string{"list-0", "list-1", "list-2", "list-3", "list-4"}), "pages hold %v", seen)
	for filter, want := range map[string]int{
		`Meta.even == "true"`: 3, `Meta is not nil and ID contains "list"`: 5, `Type == "service"`: 0, `ParameterizedJob is nil`: 5, `ID matches "list-[01]"`: 2,
	} {
		got, _, err := a.Jobs().List(&api.QueryOptions{Prefix: "list-", Filter: filter})
		ok(t, err)
		equal(t, filter, len(got), want)
	}
	alloc := a.wait(t, "list-0", "complete")
	got, _, err := a.Allocations().PrefixList(alloc.ID[:8])
	ok(t, err)
	check(t, len(got) == 1 && got[0].ID == alloc.ID, "prefix list of allocations: %d", len(got))
	ev, _, err := a.Evaluations().PrefixList(alloc.EvalID[:8])
	ok(t, err)
	check(t, len(ev) == 1 && ev[0].ID == alloc.EvalID, "prefix list of evaluations: %d", len(ev))
	n, _, err := a.Nodes().PrefixList(alloc.NodeID[:8])
	ok(t, err)
	equal(t, "nodes by prefix", len(n), 1)
	withRes, _, err := a.Allocations().List(&api.QueryOptions{Params: map[string]string{"resources": "true"}, Filter: `JobID == "list-0"`})
	ok(t, err)
	check(t, len(withRes) == 1 && withRes[0].AllocatedResources != nil, "allocations with resources: %d", len(withRes))
	evAllocs, _, err := a.Evaluations().Allocations(alloc.EvalID, nil)
	ok(t, err)
	equal(t, "allocations of the evaluation", len(evAllocs), 1)
	for i := range 5 {
		_, _, err := a.Jobs().Deregister(fmt.Sprintf("list-%d", i), true, nil)
		ok(t, err)
	}
}

func blocking(t *testing.T, a *agent, _ *api.NodeListStub) {
	_, _, err := a.Jobs().Register(shell("block", "batch", "true"), nil)
	ok(t, err)
	a.wait(t, "block", "complete")
	_, qm, err := a.Jobs().Info("block", nil)
	ok(t, err)
	begin := time.Now()
	_, qm2, err := a.Jobs().Info("block", &api.QueryOptions{WaitIndex: qm.LastIndex, WaitTime: 300 * time.Millisecond})
	ok(t, err)
	check(t, time.Since(begin) >= 250*time.Millisecond, "a blocking query on something quiet answered after %s", time.Since(begin))
	check(t, qm2.LastIndex >= qm.LastIndex, "the index went back from %d to %d", qm.LastIndex, qm2.LastIndex)

	type answer struct {
		index uint64
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		_, qm, err := a.Jobs().Info("block", &api.QueryOptions{WaitIndex: qm2.LastIndex, WaitTime: 15 * time.Second})
		if err != nil {
			done <- answer{0, err}
			return
		}
		done <- answer{qm.LastIndex, nil}
	}()
	_, _, err = a.Jobs().Deregister("block", false, nil)
	ok(t, err)
	select {
	case r := <-done:
		ok(t, r.err)
		check(t, r.index > qm2.LastIndex, "woken at index %d, waiting on %d", r.index, qm2.LastIndex)
	case <-time.After(10 * time.Second):
		t.Error("the blocking query was not woken by the change")
	}
}

func versions(t *testing.T, a *agent, _ *api.NodeListStub) {
	job := shell("ver", "service", "sleep 300")
	a.run(t, job, "running")
	job.Meta = map[string]string{"v": "1"}
	_, _, err := a.Jobs().Register(job, nil)
	ok(t, err)
	vs, diffs, _, err := a.Jobs().Versions("ver", true, nil)
	ok(t, err)
	check(t, len(vs) == 2 && *vs[0].Version == 1 && *vs[1].Version == 0, "%d versions", len(vs))
	check(t, len(diffs) == 1 && diffs[0].Type == "Edited", "diffs %v", len(diffs))
	_, _, err = a.Jobs().Revert("ver", 0, nil, nil, "", "")
	ok(t, err)
	info, _, err := a.Jobs().Info("ver", nil)
	ok(t, err)
	equal(t, "version after a revert", *info.Version, 2)
	equal(t, "meta after a revert", len(info.Meta), 0)
	_, _, err = a.Jobs().Revert("ver", 2, nil, nil, "", "")
	check(t, err != nil, "reverting to the current version was accepted")
	_, err = a.Jobs().TagVersion("ver", 0, "first", "the first one", nil)
	ok(t, err)
	vs, _, _, err = a.Jobs().Versions("ver", false, nil)
	ok(t, err)
	check(t, vs[2].VersionTag != nil && vs[2].VersionTag.Name == "first", "tag of version 0: %+v", vs[2].VersionTag)
	_, err = a.Jobs().UntagVersion("ver", "first", nil)
	ok(t, err)
	_, _, err = a.Jobs().Deregister("ver", true, nil)
	ok(t, err)
}

func scale(t *testing.T, a *agent, _ *api.NodeListStub) {
	job := shell("scaled", "service", "sleep 300")
	job.TaskGroups[0].Scaling = &api.ScalingPolicy{Min: ptr(int64(1)), Max: ptr(int64(3)), Enabled: ptr(true), Policy: map[string]any{"x": "y"}}
	a.run(t, job, "running")
	_, _, err := a.Jobs().Scale("scaled", "g", ptr(2), "more", false, map[string]any{"by": "test"}, nil)
	ok(t, err)
	eventually(t, "two running", func() error {
		st, _, err := a.Jobs().ScaleStatus("scaled", nil)
		if err != nil {
			return err
		}
		g := st.TaskGroups["g"]
		if g.Desired != 2 || g.Running != 2 || len(g.Events) == 0 || g.Events[0].Message != "more" {
			return fmt.Errorf("%+v", g)
		}
		return nil
	})
	_, _, err = a.Jobs().Scale("scaled", "g", ptr(9), "too many", false, nil, nil)
	equal(t, "scaling over the maximum", status(err), 400)
	ps, _, err := a.Scaling().ListPolicies(nil)
	ok(t, err)
	equal(t, "scaling policies", len(ps), 1)
	p, _, err := a.Scaling().GetPolicy(ps[0].ID, nil)
	ok(t, err)
	check(t, *p.Max == 3 && p.Target["Job"] == "scaled" && p.Policy["x"] == "y", "policy %+v", p)
	_, _, err = a.Jobs().Deregister("scaled", true, nil)
	ok(t, err)
}

func dispatch(t *testing.T, a *agent, _ *api.NodeListStub) {
	job := shell("param", "batch", `test "$(cat ${NOMAD_TASK_DIR}/in)" = hello && test "$NOMAD_META_who" = me`)
	job.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "required", MetaRequired: []string{"who"}}
	job.TaskGroups[0].Tasks[0].DispatchPayload = &api.DispatchPayloadConfig{File: "in"}
	_, _, err := a.Jobs().Register(job, nil)
	ok(t, err)
	_, _, err = a.Jobs().Dispatch("param", nil, []byte("hello"), "", nil)
	equal(t, "dispatch without required meta", status(err), 400)
	resp, _, err := a.Jobs().Dispatch("param", map[string]string{"who": "me"}, []byte("hello"), "", nil)
	ok(t, err)
	check(t, strings.HasPrefix(resp.DispatchedJobID, "param/dispatch-"), "child is called %q", resp.DispatchedJobID)
	a.wait(t, resp.DispatchedJobID, "complete")
	list, _, err := a.Jobs().List(&api.QueryOptions{Filter: `ParentID == "" and ParameterizedJob is not nil`})
	ok(t, err)
	check(t, len(list) == 1 && list[0].ID == "param", "parameterized parents: %d", len(list))
	_, _, err = a.Jobs().Deregister("param", true, nil)
	ok(t, err)
}

func periodic(t *testing.T, a *agent, _ *api.NodeListStub) {
	job := shell("cron", "batch", "true")
	job.Periodic = &api.PeriodicConfig{Enabled: ptr(true), SpecType: ptr("cron"), Specs: []string{"0 0 1 1 *"}, TimeZone: ptr("UTC")}
	resp, _, err := a.Jobs().Register(job, nil)
	ok(t, err)
	equal(t, "evaluation of a periodic job", resp.EvalID, "")
	_, _, err = a.Jobs().PeriodicForce("cron", nil)
	ok(t, err)
	eventually(t, "a launch", func() error {
		list, _, err := a.Jobs().List(&api.QueryOptions{Prefix: "cron/periodic-"})
		if err != nil || len(list) != 1 {
			return fmt.Errorf("%d launches, %v", len(list), err)
		}
		return nil
	})
	_, _, err = a.Jobs().Deregister("cron", true, nil)
	ok(t, err)
}

// full asks for more than the node has: the refusal must be in the words and numbers that Nomad's clients print.
func full(t *testing.T, a *agent, _ *api.NodeListStub) {
	job := shell("huge", "service", "sleep 300")
	job.TaskGroups[0].Tasks[0].Resources.MemoryMB = ptr(100_000_000)
	plan, _, err := a.Jobs().Plan(job, false, nil)
	ok(t, err)
	m := plan.FailedTGAllocs["g"]
	if m == nil {
		t.Fatalf("the plan tells of no failed group: %+v", plan)
	}
	resp, _, err := a.Jobs().Register(job, nil)
	ok(t, err)
	var eval *api.Evaluation
	eventually(t, "the evaluation to end", func() error {
		if eval, _, err = a.Evaluations().Info(resp.EvalID, nil); err != nil {
			return err
		}
		if eval.Status != "complete" {
			return errors.New(eval.Status)
		}
		return nil
	})
	m = eval.FailedTGAllocs["g"]
	if m == nil {
		t.Fatalf("the evaluation tells of no failed group: %+v", eval)
	}
	equal(t, "nodes evaluated", m.NodesEvaluated, 1)
	equal(t, "nodes exhausted", m.NodesExhausted, 1)
	equal(t, "nodes available", m.NodesAvailable["dc1"], 1)
	check(t, m.DimensionExhausted["memory"] == 1, "dimensions exhausted: %v", m.DimensionExhausted)
	equal(t, "queued", eval.QueuedAllocations["g"], 1)
	check(t, eval.BlockedEval != "", "no blocked evaluation")
	blocked, _, err := a.Evaluations().Info(eval.BlockedEval, nil)
	ok(t, err)
	equal(t, "status of the blocked evaluation", blocked.Status, "blocked")

	// A constraint that no node meets is reported with its text.
	other := shell("nowhere", "service", "sleep 300")
	other.Constraints = []*api.Constraint{api.NewConstraint("${meta.rack}", "=", "r9")}
	plan, _, err = a.Jobs().Plan(other, false, nil)
	ok(t, err)
	m = plan.FailedTGAllocs["g"]
	if m == nil {
		t.Fatal("the plan of a job with an impossible constraint tells of no failed group")
	}
	equal(t, "nodes filtered", m.NodesFiltered, 1)
	check(t, m.ConstraintFiltered["${meta.rack} = r9"] == 1, "constraints: %v", m.ConstraintFiltered)
	_, _, err = a.Jobs().Deregister("huge", true, nil)
	ok(t, err)
}

func logsAndFiles(t *testing.T, a *agent, node *api.NodeListStub) {
	alloc := a.run(t, shell("files", "service", "echo first; echo oops >&2; mkdir -p ${NOMAD_TASK_DIR}/d; printf 0123456789 > ${NOMAD_TASK_DIR}/d/ten; sleep 1; echo second; sleep 300"), "running")
	fs := a.AllocFS()
	for _, how := range []string{"direct", "server"} {
		q := &api.QueryOptions{}
		client := a.Client
		if how == "server" {
			q.Params = map[string]string{"node_id": node.ID} // stays with the agent that was asked
		}
		cancel := make(chan struct{})
		frames, errs := client.AllocFS().Logs(alloc, true, "main", "stdout", "start", 0, cancel, q)
		var got bytes.Buffer
		deadline := time.After(10 * time.Second)
		for !strings.Contains(got.String(), "second\n") {
			select {
			case f := <-frames:
				if f != nil {
					got.Write(f.Data)
				}
			case err := <-errs:
				t.Fatalf("%s: %v", how, err)
			case <-deadline:
				t.Fatalf("%s: log so far %q", how, got.String())
			}
		}
		close(cancel)
		equal(t, how+" log", got.String(), "first\nsecond\n")
	}
	frames, errs := fs.Logs(alloc, false, "main", "stderr", "end", 5, nil, nil)
	var tail bytes.Buffer
	for f := range frames {
		tail.Write(f.Data)
	}
	select {
	case err := <-errs:
		ok(t, err)
	default:
	}
	equal(t, "last bytes of stderr", tail.String(), "oops\n")

	list, _, err := fs.List(alloc, "/", nil)
	ok(t, err)
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
	}
	check(t, slices.Contains(names, "alloc") && slices.Contains(names, "main"), "the root holds %v", names)
	st, _, err := fs.Stat(alloc, "main/local/d/ten", nil)
	ok(t, err)
	check(t, st.Size == 10 && !st.IsDir, "stat %+v", st)
	for what, open := range map[string]func() (io.ReadCloser, error){
		"0123456789": func() (io.ReadCloser, error) { return fs.Cat(alloc, "main/local/d/ten", nil) },
		"345":        func() (io.ReadCloser, error) { return fs.ReadAt(alloc, "main/local/d/ten", 3, 3, nil) },
	} {
		r, err := open()
		ok(t, err)
		b, err := io.ReadAll(r)
		ok(t, err)
		r.Close()
		equal(t, "content", string(b), what)
	}
	cancel := make(chan struct{})
	stream, serr := fs.Stream(alloc, "main/local/d/ten", "start", 4, cancel, nil)
	select {
	case f := <-stream:
		equal(t, "stream", string(f.Data), "456789")
	case err := <-serr:
		t.Error(err)
	case <-time.After(5 * time.Second):
		t.Error("no frame of the stream")
	}
	close(cancel)
	for _, bad := range []string{"../../../../etc/passwd", "main/local/../../../../../etc/passwd"} {
		if r, err := fs.Cat(alloc, bad, nil); err == nil {
			b, _ := io.ReadAll(r)
			r.Close()
			check(t, !bytes.Contains(b, []byte("root:")), "%s was readable", bad)
		}
	}
	stats, err := a.Allocations().Stats(alloc, nil)
	ok(t, err)
	check(t, stats.Tasks["main"] != nil && stats.ResourceUsage.MemoryStats != nil, "stats %+v", stats)
}

func execs(t *testing.T, a *agent, _ *api.NodeListStub) {
	alloc := a.wait(t, "files", "running")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, errOut bytes.Buffer
	sizes := make(chan api.TerminalSize)
	code, err := a.Allocations().Exec(ctx, alloc, "main", false, []string{"/bin/sh", "-c", "cat; echo err >&2; exit 7"}, strings.NewReader("in put\n"), &out, &errOut, sizes, nil)
	ok(t, err)
	equal(t, "exit code", code, 7)
	equal(t, "stdout", out.String(), "in put\n")
	equal(t, "stderr", errOut.String(), "err\n")

	out.Reset()
	code, err = a.Allocations().Exec(ctx, alloc, "main", true, []string{"/bin/sh", "-c", "test -t 0 && test -t 1 && echo terminal"}, strings.NewReader(""), &out, io.Discard, sizes, nil)
	ok(t, err)
	equal(t, "exit code with a terminal", code, 0)
	equal(t, "output of a terminal", out.String(), "terminal\r\n")

	_, err = a.Allocations().Exec(ctx, alloc, "nope", false, []string{"true"}, strings.NewReader(""), io.Discard, io.Discard, sizes, nil)
	check(t, err != nil, "exec in a task that does not exist worked")
}

func lifecycle(t *testing.T, a *agent, _ *api.NodeListStub) {
	alloc := a.wait(t, "files", "running")
	ok(t, a.Allocations().Signal(alloc, nil, "main", "SIGCONT"))
	check(t, a.Allocations().Signal(alloc, nil, "main", "SIGNOPE") != nil, "an unknown signal was sent")
	ok(t, a.Allocations().Restart(alloc, "main", nil))
	eventually(t, "the restart", func() error {
		info, _, err := a.Allocations().Info(alloc.ID, nil)
		if err != nil {
			return err
		}
		if s := info.TaskStates["main"]; s.Restarts != 1 || s.State != "running" {
			return fmt.Errorf("restarts %d, %s", s.Restarts, s.State)
		}
		return nil
	})
	resp, err := a.Allocations().Stop(alloc, nil)
	ok(t, err)
	check(t, resp.EvalID != "", "stopping an allocation made no evaluation")
	eventually(t, "the allocation to be replaced", func() error {
		info, _, err := a.Allocations().Info(alloc.ID, nil)
		if err != nil {
			return err
		}
		if info.ClientStatus != "complete" || info.NextAllocation == "" && info.DesiredStatus != "stop" {
			return errors.New(info.ClientStatus + " " + info.DesiredStatus)
		}
		return nil
	})
	next := a.wait(t, "files", "running")
	check(t, next.ID != alloc.ID, "the stopped allocation runs")

	// A failing task is restarted as its policy says, then the allocation fails.
	bad := shell("bad", "batch", "exit 3")
	bad.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: ptr(0), Unlimited: ptr(false), Interval: ptr(time.Duration(0)), Delay: ptr(5 * time.Second), DelayFunction: ptr("constant"), MaxDelay: ptr(time.Duration(0))}
	failed := a.run(t, bad, "failed")
	equal(t, "restarts", failed.TaskStates["main"].Restarts, 2)
	check(t, slices.ContainsFunc(failed.TaskStates["main"].Events, func(e *api.TaskEvent) bool { return e.Type == api.TaskTerminated && e.ExitCode == 3 }), "no Terminated event with exit code 3")
	for _, id := range []string{"bad", "files"} {
		_, _, err = a.Jobs().Deregister(id, true, nil)
		ok(t, err)
	}
}
