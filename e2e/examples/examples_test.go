//go:build e2e

// Package examples runs every job file of the folder examples on an agent with made-up GPUs, and accepts it by its output.
package examples

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/examples"
)

// example is how one file is run and accepted.
type example struct {
	file, job string
	needs     string         // a program without which it cannot run
	start     []string       // a command after the submission
	task      string         // whose output; "" for the only one
	want      map[string]int // expressions in the output of all allocations, and how often at least
	service   string         // a service that answers with `answer`
	answer    string         // an expression
	after     func(*run)     // what happens while it runs
	vars      []string       // of the file; DIR is what the nodes share
	late      bool           // it wants all GPUs, and comes after the others
}

var table = []example{
	{file: "fsdp", job: "fsdp", needs: "torchrun", vars: []string{"gpus=1"}, after: killMember, want: map[string]int{`rank [01] of 2 starts at step [1-9]`: 2, `rank [01]: 150 steps, shard \[150.0, 150.0\]`: 2}}, // first: its member is killed while it trains
	{file: "example", job: "example", want: map[string]int{`hello number 2 from example.hello\[0\]`: 1}},
	{file: "batch", job: "batch", want: map[string]int{`piece \d is done`: 10}},
	{file: "gpu", job: "gpu", want: map[string]int{`devices: GPU-`: 1}},
	{file: "service", job: "web", service: "web", answer: `hello from web\.web\[\d\]`},
	{file: "inference", job: "inference", service: "inference", answer: `"gpu": "GPU-`},
	{file: "notebook", job: "notebook", service: "notebook", answer: `notebook in notebook\.notebook\[0\]`},
	{file: "sweep", job: "sweep", want: map[string]int{`index 0: lr 0.1, seed 1`: 1, `index 3: lr 0.01, seed 2: loss 0.012`: 1}},
	{file: "collect", job: "collect", want: map[string]int{`best of 4: index 2, lr 0.01, loss 0.011`: 1}},
	{file: "torchrun", job: "torchrun", needs: "torchrun", vars: []string{"gpus=1", "pythonpath=DIR/site"}, want: map[string]int{`rank [01] of 2: has learned: True`: 2}},
	{file: "deepspeed", job: "deepspeed", want: map[string]int{`launcher: 4 ranks on \d hosts, sum 6, failed 0`: 1}},
	{file: "mpirun", job: "mpi", needs: "mpirun", want: map[string]int{`rank [0-3] of 4`: 4}},
	{file: "parameterized", job: "evaluate", start: []string{"job", "dispatch", "-detach", "-meta", "model=small", "evaluate"}, want: map[string]int{`evaluating model small`: 1}},
	{file: "periodic", job: "nightly", start: []string{"job", "periodic", "force", "-detach", "nightly"}, want: map[string]int{`the nightly report of nightly`: 1}},
	{file: "evaluator", job: "pair", task: "evaluator", want: map[string]int{`evaluated checkpoint [123]`: 3}},
	{file: "scavenger", job: "scavenger", after: preempt, late: true, want: map[string]int{`begins at step [1-9]`: 1, `saved step 100`: 1}},
	{file: "elastic", job: "elastic", after: shrink, late: true, want: map[string]int{`member [012] of 3`: 3, `epoch [2-9]: member 0 of 1\n`: 1}},
}

// run is one example on the fleet.
type run struct {
	example
	*harness.Fleet
	t   *testing.T
	dir string // what the nodes share
}

// TestExamples submits the files as they are, all at once as far as there are GPUs, and reads what they print.
func TestExamples(t *testing.T) {
	rows := map[string]bool{}
	for _, x := range table {
		rows[x.file+".hcl"] = true
	}
	entries, err := examples.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !rows[e.Name()] {
			t.Errorf("no test runs examples/%s: give it a row in the table", e.Name())
		}
	}
	f := start(t)
	dir, err := os.MkdirTemp("/var/tmp", "muster-examples-") // tasks have a /tmp of their own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	site := filepath.Join(dir, "site")
	for _, d := range []string{dir, site} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(site, "sitecustomize.py"), []byte(harness.SiteCustomize), 0o644); err != nil {
		t.Fatal(err)
	}
	var soon, late []*run
	for _, x := range table {
		if only := os.Getenv("EXAMPLE"); only != "" && !regexp.MustCompile("^("+only+")$").MatchString(x.file) {
			continue
		}
		r := &run{example: x, Fleet: f, dir: dir}
		if x.late {
			late = append(late, r)
			continue
		}
		if x.needs != "" {
			if _, err := exec.LookPath(x.needs); err != nil {
				t.Run(x.file, func(t *testing.T) { harness.NotRun(t, x.needs+" is not installed") })
				continue
			}
		}
		r.submit()
		soon = append(soon, r)
	}
	for _, r := range soon {
		t.Run(r.file, r.accept)
	}
	for _, r := range soon {
		f.Must("job", "stop", "-detach", "-yes", r.job)
	}
	f = start(t)             // the work before leaves a history of preemptions and usage, on which theirs depend
	for _, r := range late { // one after the other; elastic is the last, because what takes its GPUs stays
		r.Fleet = f
		r.submit()
		t.Run(r.file, r.accept)
		f.Must("job", "stop", "-detach", "-yes", r.job)
	}
}

// start returns one agent with eight GPUs, whose queue preempts after a second.
func start(t *testing.T) *harness.Fleet {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "8xH100"})
	f.Must("queue", "apply", f.File("queue.hcl", "queue \"default\" {\n  preempt             = \"priority\"\n  preempt_min_runtime = \"1s\"\n}\n"))
	return f
}

// submit runs the file that `job init` writes, with the directory that the nodes share.
func (r *run) submit() {
	r.T.Helper()
	src, err := examples.Files.ReadFile(r.file + ".hcl")
	if err != nil {
		r.T.Fatal(err)
	}
	path := filepath.Join(r.Dir, r.file+".hcl")
	r.Must("job", "init", "-template", r.file, path)
	if got, err := os.ReadFile(path); err != nil || string(got) != string(src) {
		r.T.Fatalf("job init -template %s wrote another file: %v\n%s", r.file, err, got)
	}
	args := []string{"job", "run", "-detach"}
	if strings.Contains(string(src), `variable "dir"`) {
		args = append(args, "-var", "dir="+r.dir)
	}
	for _, v := range r.vars {
		args = append(args, "-var", strings.Replace(v, "DIR", r.dir, 1))
	}
	r.Must(append(args, path)...)
	if r.start != nil {
		r.Must(r.start...)
	}
}

func (r *run) accept(t *testing.T) {
	r.t = t
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		as, _ := r.API.Allocs(r.job)
		for _, a := range as {
			out, _ := r.Muster("alloc", "status", a.ID)
			t.Log(out)
		}
		why, _ := r.Muster("job", "why", r.job)
		t.Log(why)
	})
	if r.after != nil {
		r.after(r)
	}
	if r.service != "" {
		r.reach()
	}
	for re, n := range r.want {
		harness.Eventually(t, 120*time.Second, fmt.Sprintf("%s prints %q %d times", r.job, re, n), func() (bool, string) {
			out := r.output()
			return len(regexp.MustCompile(re).FindAllString(out, -1)) >= n, out
		})
	}
}

// output returns what all allocations of the job, and of its children, have printed.
func (r *run) output() string {
	var as []harness.Alloc
	if err := r.API.Call("GET", "/v1/allocations", nil, &as); err != nil {
		return err.Error()
	}
	out := ""
	for _, a := range as {
		if a.JobID != r.job && !strings.HasPrefix(a.JobID, r.job+"/") {
			continue
		}
		for _, stream := range []string{"stdout", "stderr"} {
			args := []string{"alloc", "logs", "-" + stream, a.ID}
			if r.task != "" {
				args = append(args, r.task)
			}
			text, err := r.Muster(args...)
			if err != nil {
				text = ""
			}
			out += text
		}
	}
	return out
}

// reach asks the service at the address that it registered.
func (r *run) reach() {
	harness.Eventually(r.t, 120*time.Second, r.service+" answers", func() (bool, string) {
		var list []struct {
			Address string
			Port    int
		}
		if err := r.API.Call("GET", "/v1/service/"+r.service, nil, &list); err != nil || len(list) == 0 {
			return false, fmt.Sprint(list, err)
		}
		resp, err := http.Get("http://" + net.JoinHostPort(list[0].Address, strconv.Itoa(list[0].Port)) + "/")
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return err == nil && regexp.MustCompile(r.answer).Match(b), string(b)
	})
}

// killMember kills one member of the gang after it has saved a few times.
func killMember(r *run) {
	for _, shard := range []string{"fsdp-0.before.pt", "fsdp-1.before.pt"} {
		harness.Eventually(r.t, 120*time.Second, "saved shards", func() (bool, string) {
			_, err := os.Stat(filepath.Join(r.dir, shard))
			return err == nil, r.output()
		})
	}
	as, err := r.API.Allocs(r.job)
	if err != nil || len(as) != 2 {
		r.t.Fatalf("%d members, %v", len(as), err)
	}
	r.Must("alloc", "signal", "-s", "SIGKILL", as[1].ID)
}

// shrink wants all GPUs but one for work of a higher priority, so that one member is left.
func shrink(r *run) {
	harness.Eventually(r.t, 120*time.Second, "three members", func() (bool, string) {
		out := r.output()
		return strings.Contains(out, "member 2 of 3"), out
	})
	r.Run(harness.Work{ID: "wide", Settings: "priority = 90", GPUs: "count = 7", Script: "echo wide work runs; exec sleep 600"})
}

// preempt wants a GPU for work of a higher priority.
func preempt(r *run) {
	harness.Eventually(r.t, 120*time.Second, "the scavenger runs", func() (bool, string) {
		out := r.output()
		return strings.Contains(out, "at step 20\n"), out // longer than preempt_min_runtime
	})
	urgent := harness.Work{ID: "urgent", Settings: "priority = 90", GPUs: "count = 1", Script: "echo urgent work runs"}
	r.Run(urgent)
	harness.Eventually(r.t, 120*time.Second, "the urgent work runs", func() (bool, string) {
		out, _ := r.Muster("job", "logs", urgent.ID)
		why, _ := r.Muster("job", "why", urgent.ID)
		return strings.Contains(out, "urgent work runs"), out + why + r.output()
	})
}
