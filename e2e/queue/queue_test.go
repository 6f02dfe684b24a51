//go:build e2e

// Package queue asks real agents, whose GPUs are made up, why jobs wait, and does what they answer.
package queue

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/structs"
)

// fleet is two machines of 8 GPUs, each under a separate switch.
func fleet(t *testing.T) *harness.Fleet {
	return harness.StartFleet(t,
		harness.FleetNode{Name: "one", GPUs: "8xH100", Meta: map[string]string{"leaf": "a"}},
		harness.FleetNode{Name: "two", GPUs: "8xH100", Meta: map[string]string{"leaf": "b"}})
}

func namespace(w harness.Work) string {
	if w.Namespace == "" {
		return "default"
	}
	return w.Namespace
}

// waits waits until a job is pending for a reason, and checks it in both forms of `job why` and `queue`.
func waits(f *harness.Fleet, w harness.Work, code string, says ...string) nomadlike.Why {
	f.T.Helper()
	var why nomadlike.Why
	harness.Eventually(f.T, 20*time.Second, w.ID+" waits for "+code, func() (bool, string) {
		text, err := f.Muster("job", "why", "-namespace", namespace(w), w.ID)
		if err != nil || !strings.Contains(text, "is pending") || !strings.Contains(text, "[reason: "+code+"]") {
			return false, fmt.Sprint(err, text)
		}
		for _, s := range says {
			if !strings.Contains(text, s) {
				return false, fmt.Sprintf("want %q in\n%s", s, text)
			}
		}
		raw, err := f.Muster("job", "why", "-json", "-namespace", namespace(w), w.ID)
		if err == nil {
			why = nomadlike.Why{}
			err = json.Unmarshal([]byte(raw), &why)
		}
		if err != nil {
			return false, err.Error()
		}
		named := code == string(structs.ReasonPreemptionPending) || string(why.Reason) == code
		for _, g := range why.Groups {
			for _, r := range g.Refusals {
				named = named || string(g.Reason) == code && string(r.Code) == code
			}
		}
		if !named {
			return false, raw
		}
		return true, ""
	})
	table := f.Must("queue", "-namespace", "*")
	found := false
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		found = found || len(fields) > 2 && (fields[1] == w.ID || fields[1] == namespace(w)+"/"+w.ID) && strings.Contains(line, " "+code+" ")
	}
	if !found {
		f.T.Errorf("muster queue does not list %s with %s:\n%s", w.ID, code, table)
	}
	var list []nomadlike.QueueItem
	if err := json.Unmarshal([]byte(f.Must("queue", "-json", "-namespace", "*")), &list); err != nil {
		f.T.Fatal(err)
	}
	found = false
	for _, it := range list {
		found = found || it.JobID == w.ID && it.Namespace == namespace(w) && it.Reason == code
	}
	if !found {
		f.T.Errorf("muster queue -json does not list %s with %s: %+v", w.ID, code, list)
	}
	return why
}

// advised returns the change among the advice that a text begins with.
func advised(f *harness.Fleet, w harness.Work, text string) nomadlike.AdviceChange {
	f.T.Helper()
	var out nomadlike.AdviceChange
	harness.Eventually(f.T, 20*time.Second, fmt.Sprintf("%s would start with %q", w.ID, text), func() (bool, string) {
		raw := f.Must("job", "why", "-json", "-namespace", namespace(w), w.ID)
		var why nomadlike.Why
		if err := json.Unmarshal([]byte(raw), &why); err != nil || why.Advice == nil {
			return false, fmt.Sprint(err, raw)
		}
		for _, c := range why.Advice.Changes {
			if strings.HasPrefix(c.Text, text) {
				out = c
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", why.Advice)
	})
	return out
}

// submit registers the job that the advice is about.
func submit(f *harness.Fleet, c nomadlike.AdviceChange) {
	f.T.Helper()
	if c.Job == nil {
		f.T.Fatalf("%q has no job to submit", c.Text)
	}
	b, err := json.Marshal(map[string]any{"Job": c.Job})
	if err != nil {
		f.T.Fatal(err)
	}
	f.Must("job", "run", "-detach", f.File("advised.json", string(b)))
}

// TestQuota: the limit of a queue and the quota of a namespace refuse the ninth GPU, usage is reported to the unit, and
// raising the limit by the amount in `job why` starts the job. Past a soft limit others go first.
func TestQuota(t *testing.T) {
	f := fleet(t)
	held := func(queue string) (gpus float64, memory int64) {
		var q nomadlike.QueueState
		if err := json.Unmarshal([]byte(f.Must("queue", "inspect", queue)), &q); err != nil {
			t.Fatal(err)
		}
		return *q.Held.GPUs, *q.Held.GPUMemoryMB
	}
	limit := func(n int) {
		f.Must("queue", "apply", f.File("queues.hcl", fmt.Sprintf("queue \"lab\" {\n  limit = { gpus = %d }\n}\nqueue \"lab/nlp\" {\n}\n", n)))
	}
	limit(8)
	eight := harness.Work{ID: "eight", Settings: `queue = "lab/nlp"`, Group: "count = 8", GPUs: "count = 1"}
	ninth := harness.Work{ID: "ninth", Settings: `queue = "lab/nlp"`, GPUs: "count = 1"}
	f.Run(eight)
	f.Running(eight, 8)
	f.Run(ninth)
	waits(f, ninth, "QUOTA", "queue lab: it would exceed the limit of gpu by 1 GPU", "others of the queue end, or its limit is raised")
	if g, m := held("lab"); g != 8 || m != 8*81559-8*563 && m != 8*81559 && m == 0 {
		t.Errorf("lab holds %v GPUs and %d MiB of their memory", g, m)
	}
	if out := f.Must("queue", "status", "lab"); !strings.Contains(out, "8 GPUs") {
		t.Errorf("queue status: %s", out)
	}
	advised(f, ninth, "1 more GPU in the limit of queue lab")
	limit(9)
	f.Running(ninth, 1)
	if g, _ := held("lab"); g != 9 {
		t.Errorf("lab holds %v GPUs, want 9", g)
	}
	f.Stop(eight, ninth)
	if g, m := held("lab/nlp"); g != 0 || m != 0 {
		t.Errorf("what has ended is still held: %v GPUs, %d MiB", g, m)
	}

	quota := func(n int) {
		f.Must("quota", "apply", f.File("quota.hcl", fmt.Sprintf("quota \"team\" {\n  limit {\n    region = \"global\"\n    region_limit {\n      device \"nvidia/gpu\" {\n        count = %d\n      }\n    }\n  }\n}\n", n)))
	}
	quota(8)
	f.Must("namespace", "apply", "-quota", "team", "ml")
	eight.Namespace, eight.Settings, ninth.Namespace, ninth.Settings = "ml", "", "ml", ""
	f.Run(eight)
	f.Running(eight, 8)
	f.Run(ninth)
	waits(f, ninth, "QUOTA", "quota team: it would exceed the limit of gpu by 1 GPU")
	if out := f.Must("quota", "status", "team"); !strings.Contains(strings.Join(strings.Fields(out), " "), "GPUs 8 8 -") {
		t.Errorf("quota status: %s", out)
	}
	// Others are not held back.
	free := harness.Work{ID: "free", GPUs: "count = 1"}
	f.Run(free)
	f.Running(free, 1)
	advised(f, ninth, "1 more GPU in the limit of quota team")
	quota(9)
	f.Running(ninth, 1)
	if out := f.Must("quota", "status", "team"); !strings.Contains(strings.Join(strings.Fields(out), " "), "GPUs 9 9 -") {
		t.Errorf("quota status: %s", out)
	}
	f.Stop(eight, ninth, free)

	// A soft limit refuses no job; jobs of a queue past it are served after the others.
	f.Must("queue", "apply", f.File("soft.hcl", "queue \"soft\" {\n  order = \"fcfs\"\n  soft_limit = { gpus = 8 }\n}\nqueue \"polite\" {\n  order = \"fcfs\"\n}\n"))
	over := harness.Work{ID: "over", Settings: `queue = "soft"`, GPUs: "count = 8"}
	past := harness.Work{ID: "past", Settings: `queue = "soft"`, GPUs: "count = 1"}
	f.Run(over)
	f.Running(over, 1)
	f.Run(past)
	f.Running(past, 1)
	rest := harness.Work{ID: "rest", GPUs: "count = 7"}
	f.Run(rest)
	f.Running(rest, 1)
	more := harness.Work{ID: "more", Settings: `queue = "soft"`, GPUs: "count = 7"}
	late := harness.Work{ID: "late", Settings: `queue = "polite"`, GPUs: "count = 7"}
	f.Run(more)
	waits(f, more, "RESOURCES")
	f.Run(late)
	waits(f, late, "RESOURCES")
	f.Stop(rest)
	f.Running(late, 1)
	waits(f, more, "RESOURCES")
	f.Stop(late)
	f.Running(more, 1)
}
