package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/sim"
	"github.com/muster-sched/muster/structs"
)

// What the machine needed differs from run to run.
var simTimes = regexp.MustCompile(`("(wall_s|overhead)":)[0-9.e-]+|(?m)^((Scheduling overhead|Time of the simulation) ).*$`)

// simGolden are replays of traces that a person can follow by hand.
var simGolden = []struct {
	name, args string
	code       int
}{
	{"sim_csv", "sim -trace testdata/sim/jobs.csv -nodes 2x8 -policy default,fcfs+easy", 0},
	{"sim_csv_json", "sim -trace testdata/sim/jobs.csv -nodes 2x8 -policy default,fair+easy -json", 0},
	{"sim_swf_json", "sim -format swf -trace testdata/sim/log.swf -procs 10 -policy default,easy,easy-sjbf,easy-tsafrir,conservative -json", 0},
	{"sim_swf_csv", "sim -trace testdata/sim/log.csv -procs 10 -policy easy,easy-clair -json", 0},
	{"sim_swf_on_nodes", "sim -format csv -trace testdata/sim/log.swf -nodes 2x8 -policy default -json", 0},
	{"sim_muri_known", "sim -format muri -trace testdata/sim/muri.csv -nodes 2x8 -policy srtf,srsf,default -durations known -json", 0},
	{"sim_muri_unknown", "sim -format muri -trace testdata/sim/muri.csv -nodes 2x8 -policy 2d-las,default -durations unknown -json", 0},
	{"sim_openb", "sim -format openb -nodes testdata/sim/nodes.csv -trace testdata/sim/pods.csv -policy fgd,bestfit,dotprod,packing,clustering,random,default -seeds 2 -json", 0},
	{"sim_limit", "sim -format swf -trace testdata/sim/log.swf -procs 10 -policy easy -limit 2 -json", 0},
	{"sim_no_procs", "sim -format swf -trace testdata/sim/log.swf", 1},
	{"sim_no_nodes", "sim -trace testdata/sim/jobs.csv", 1},
	{"sim_no_trace", "sim -nodes 2x8", 1},
	{"sim_missing", "sim -trace testdata/sim/none -nodes 2x8", 1},
	{"sim_no_format", "sim -format pbs -trace testdata/sim/jobs.csv -nodes 2x8", 1},
	{"sim_no_policy", "sim -trace testdata/sim/jobs.csv -nodes 2x8 -policy default,fastest", 1},
	{"sim_negative", "sim -trace testdata/sim/jobs.csv -nodes 2x8 -limit -1", 1},
	{"sim_not_known", "sim -format muri -trace testdata/sim/muri.csv -nodes 2x8 -policy srtf -durations unknown", 1},
	{"sim_wrong_columns", "sim -format muri -trace testdata/sim/jobs.csv -nodes 2x8", 1},
}

func TestSimGolden(t *testing.T) {
	for _, c := range simGolden {
		t.Run(c.name, func(t *testing.T) {
			r := newAgentFake(t).run(t, "", strings.Fields(c.args)...)
			got := fmt.Sprintf("$ muster %s\n-- exit %d\n-- stdout\n%s-- stderr\n%s", c.args, r.code, r.out, r.errOut)
			got = simTimes.ReplaceAllString(got, "${1}${3}0")
			if r.code != c.code {
				t.Errorf("exit status %d, want %d\n%s", r.code, c.code, got)
			}
			file := filepath.Join("testdata", c.name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s differs (write it anew with -update and read the difference):\n%s", file, got)
			}
		})
	}
}

// With -json there is one object per policy and line, in the order of the policies, with the figures that the traces'
// READMEs report.
func TestSimJSONContract(t *testing.T) {
	for _, c := range []struct {
		args, policies string
		figures        []string
	}{
		{"-format swf -trace testdata/sim/log.swf -procs 10", "easy,easy-sjbf,easy-tsafrir,conservative,default", []string{"avebsld", "mean_wait", "p99_wait", "wall_s"}},
		{"-format muri -trace testdata/sim/muri.csv -nodes 2x8 -durations known", "srtf,srsf,2d-las,default", []string{"avg_jct", "makespan", "p99_jct", "wall_s"}},
		{"-format muri -trace testdata/sim/muri.csv -nodes 2x8 -durations unknown", "default,2d-las", []string{"avg_jct", "makespan", "p99_jct", "wall_s"}},
		{"-format openb -nodes testdata/sim/nodes.csv -trace testdata/sim/pods.csv -seeds 1", "fgd,bestfit,dotprod,packing,clustering,random,default", []string{"alloc_100", "alloc_130", "wall_s"}},
		{"-trace testdata/sim/jobs.csv -nodes 2x8", "default,fair+easy+fgd", []string{"mean_wait", "avg_jct", "p95_bsld", "makespan", "utilisation", "fragmentation", "jain", "preemptions", "wall_s"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := newAgentFake(t).run(t, "", strings.Fields("sim "+c.args+" -json -policy "+c.policies)...)
			lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
			want := strings.Split(c.policies, ",")
			if r.code != 0 || len(lines) != len(want) {
				t.Errorf("%s: exit status %d, %d lines for %d policies\n%s", c.args, r.code, len(lines), len(want), r.errOut)
				return
			}
			for i, line := range lines {
				var got map[string]any
				if err := json.Unmarshal([]byte(line), &got); err != nil {
					t.Errorf("%s: %v in %s", c.args, err, line)
					continue
				}
				if got["policy"] != want[i] {
					t.Errorf("%s: line %d is of policy %v, want %s", c.args, i+1, got["policy"], want[i])
				}
				for _, f := range c.figures {
					if _, ok := got[f].(float64); !ok {
						t.Errorf("%s: policy %s has no number %s: %v", c.args, want[i], f, got[f])
					}
				}
			}
		})
	}
}

// A packed trace, one with Windows line ends and one that begins with a byte order mark are read like the plain one.
func TestSimFiles(t *testing.T) {
	for _, c := range []struct{ file, args string }{
		{"jobs.csv", "-nodes 2x8"}, {"log.csv", "-format swf -procs 10 -policy easy"}, {"log.swf", "-format swf -procs 10 -policy easy"},
		{"muri.csv", "-format muri -nodes 2x8"}, {"pods.csv", "-format openb -nodes testdata/sim/nodes.csv -seeds 1"},
	} {
		t.Run(c.file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata/sim", c.file))
			if err != nil {
				t.Fatal(err)
			}
			plain := bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			if _, err := z.Write(plain); err != nil || z.Close() != nil {
				t.Fatal(err)
			}
			first := ""
			for _, v := range []struct {
				name string
				text []byte
			}{{"plain", plain}, {"packed.gz", packed.Bytes()}, {"windows", bytes.ReplaceAll(plain, []byte("\n"), []byte("\r\n"))},
				{"marked", append([]byte("\ufeff"), plain...)}, {"no-last-newline", bytes.TrimSuffix(plain, []byte("\n"))}, {"empty-lines", append([]byte("\n\n"), plain...)}} {
				t.Run(v.name, func(t *testing.T) {
					name := filepath.Join(t.TempDir(), v.name)
					if err := os.WriteFile(name, v.text, 0o600); err != nil {
						t.Fatal(err)
					}
					r := newAgentFake(t).run(t, "", strings.Fields("sim -json -trace "+name+" "+c.args)...)
					got := simTimes.ReplaceAllString(r.out, "${1}0")
					if first == "" {
						first = got
					}
					if r.code != 0 || got != first || got == "" {
						t.Errorf("%s, %s: exit status %d\n%s\nthe plain one:\n%s%s", c.file, v.name, r.code, got, first, r.errOut)
					}
				})
			}
		})
	}
}

// TestSimFlags: each of these flags changes what becomes of the jobs.
func TestSimFlags(t *testing.T) {
	replay := func(args string) string {
		t.Helper()
		r := newAgentFake(t).run(t, "", strings.Fields("sim -json "+args)...)
		if r.code != 0 {
			t.Fatalf("%s: exit status %d, %s", args, r.code, r.errOut)
		}
		return simTimes.ReplaceAllString(r.out, "${1}0")
	}
	const team, jobs = "-trace testdata/sim/team.csv -nodes 1x8 ", "-trace testdata/sim/jobs.csv -nodes 2x8 "
	for _, c := range []struct{ base, flag string }{
		{team, "-mtbf 10m"}, {team + "-mtbf 10m", " -mttr 5m"}, {team + "-mtbf 10m", " -restart-cost 7m"}, {team + "-mtbf 10m", " -seed 5"}, {jobs, "-estimate-error 2"}, {jobs, "-preemptible"},
		{"-format openb -nodes testdata/sim/nodes.csv -trace testdata/sim/pods.csv -policy random", " -seeds 1"},
	} {
		if replay(c.base) == replay(c.base+c.flag) {
			t.Errorf("%s: %s changes nothing", c.base, c.flag)
		}
	}
	page := filepath.Join(t.TempDir(), "report.html")
	replay(team + "-html " + page)
	if b, err := os.ReadFile(page); err != nil || !bytes.Contains(b, []byte("<svg")) {
		t.Errorf("-html wrote %d bytes, %v", len(b), err)
	}
}

// TestSimNotice: with -notice the successor of preempted work waits until that has saved its state. The storage of the dump, or that of the
// options, serves one save at a time.
func TestSimNotice(t *testing.T) {
	kinds, err := sim.ParseNodes("1x8")
	if err != nil {
		t.Fatal(err)
	}
	nodes, now := sim.BuildNodes(kinds), sim.Epoch.Add(time.Hour)
	job := func(id string, priority int, gpus int64, limit time.Duration) *structs.Job {
		return &structs.Job{Namespace: structs.NamespaceDefault, ID: id, Type: structs.JobBatch, Priority: priority, Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
			Runtime: structs.Runtime{Limit: limit}, Preemptible: true, Groups: []*structs.Group{{Name: "g", Count: 1, Checkpoint: &structs.Checkpoint{Signal: "SIGUSR1", Grace: 10 * time.Minute, Storage: "lustre1"},
				Tasks: []*structs.Task{{Name: "t", Driver: sim.Driver, Resources: structs.Resources{CPU: 1, MemoryMiB: 1, GPU: []structs.GPURequest{{Count: gpus}}}}}}}}
	}
	// high takes the places of both when they have run for preempt_min_runtime.
	low, short, high := job("low", 20, 4, 10*time.Hour), job("short", 20, 4, 31*time.Minute), job("high", 80, 8, time.Hour)
	var held []*structs.Allocation
	for i, j := range []*structs.Job{low, short} {
		a := &structs.Allocation{ID: structs.AllocID{byte(i + 1)}, Namespace: j.Namespace, JobID: j.ID, Job: j, Group: "g", NodeID: nodes[0].ID, Resources: structs.Vector{CPU: 1, MemoryMiB: 1},
			Client: structs.ClientRunning, Desired: structs.DesiredRun, CreateTime: now.Add(-time.Minute)}
		gpus := &nodes[0].Resources.Devices[0]
		for _, d := range gpus.Instances[4*i : 4*i+4] {
			a.Grants = append(a.Grants, structs.Grant{Task: "t", Device: gpus.ID(), Instance: d.ID})
		}
		held = append(held, a)
	}
	held[1].Saved = &structs.Saved{Time: now.Add(-time.Second), Took: 4 * time.Minute} // and so does its next save
	dump, err := scheduler.Dump(scheduler.Input{View: model.NewView(1, nodes, held, nil), Now: now, Pending: []contend.Workload{{Key: high.Key(), Job: high}},
		Config: structs.SchedulerConfig{CheckpointStorage: map[string]int64{"lustre1": 1}}}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("dump", dump, 0o600); err != nil {
		t.Fatal(err)
	}
	// high ends after 61 minutes; after 71, when low has saved its state for 10, or after 75, when short, which does so for 4, has had its turn, too.
	// The others end later by as much, less the time for which they work until they save.
	for flag, want := range map[string]string{
		"": `"avg_jct":16200,`, "-notice -checkpoint-storage lustre1=0": `"avg_jct":16520,`,
		"-notice": `"avg_jct":16560,`, "-notice -checkpoint-storage lustre1=2 -max-checkpoints 1": `"avg_jct":16560,`,
	} {
		r := newAgentFake(t).run(t, "", strings.Fields("sim -json -format snapshot -trace dump -policy fcfs+greedy+preempt-priority "+flag)...)
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("%q: exit status %d, want %s: %s%s", flag, r.code, want, r.out, r.errOut)
		}
	}
}
