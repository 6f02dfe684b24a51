//go:build e2e

package queue

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// reason is one reason code: how it arises, what is reported, and what starts the job.
type reason struct {
	name   string
	code   string
	before func(f *harness.Fleet) // what has to be so
	first  []harness.Work         // that run before
	job    harness.Work
	says   []string // of `job why`
	try    string   // the advice that is followed; "": none is given
	cure   func(f *harness.Fleet)
	after  func(f *harness.Fleet)
}

// filler holds so many GPUs of a node.
func filler(node, gpus string) harness.Work {
	return harness.Work{ID: "on-" + node, GPUs: "count = " + gpus, Settings: "constraint {\n    attribute = \"${node.unique.name}\"\n    value     = \"" + node + "\"\n  }"}
}

func queues(text string) func(f *harness.Fleet) {
	return func(f *harness.Fleet) { f.T.Helper(); f.Must("queue", "apply", f.File("q.hcl", text)) }
}

const gang = "count = 2\n    gang = { timeout = \"1m\" }"

// urgent is worth the loss of what makes room for it.
const urgent = "queue = \"urgent\"\n  priority = 90\n  runtime = { expected = \"10h\" }"

func reasons() []reason {
	var simulated *harness.Proc
	meta := func(args ...string) func(f *harness.Fleet) {
		return func(f *harness.Fleet) {
			f.T.Helper()
			for id := range strings.FieldsSeq(f.Must("node", "status", "-q")) {
				f.Must(append([]string{"node", "meta", "apply", "-node-id", id}, args...)...)
				harness.Eventually(f.T, 20*time.Second, "the servers to know of it", func() (bool, string) {
					out := f.Must("node", "status", "-json", id)
					return strings.Contains(out, "taint.team") == (args[0] != "-unset"), out
				})
			}
		}
	}
	both := func(verb string) func(f *harness.Fleet) {
		return func(f *harness.Fleet) {
			f.T.Helper()
			for id := range strings.FieldsSeq(f.Must("node", "status", "-q")) {
				f.Must("node", "eligibility", verb, id)
			}
		}
	}
	return []reason{
		// The first, while no run times of such work are known: later its ends are predicted, and the reservation is
		// for now.
		{name: "promise", code: "RESERVATION", first: []harness.Work{timed("on-one", "one", "10m"), {ID: "wide", Settings: `runtime = { limit = "1h" }`, Group: gang, GPUs: "count = 8"}},
			job: harness.Work{ID: "w", Settings: `runtime = { limit = "5h" }`, GPUs: "count = 2"}, says: []string{"nvidia/gpu reserved for wide, short by 2 GPUs"}, try: "a run time limit of "},
		{name: "resources", code: "RESOURCES", first: []harness.Work{filler("one", "7"), filler("two", "6")}, job: harness.Work{ID: "w", GPUs: "count = 4"},
			says: []string{"too little nvidia/gpu, short by 2 GPUs on the nearest", "another 2 nvidia/gpu come free"}, try: "2 GPUs instead of 4"},
		{name: "priority", code: "PRIORITY", before: queues("queue \"strict\" {\n  order = \"fcfs\"\n  backfill = \"none\"\n}\n"),
			first: []harness.Work{filler("one", "1"), {ID: "head", Settings: `queue = "strict"`, Group: gang, GPUs: "count = 8"}},
			job:   harness.Work{ID: "w", Settings: `queue = "strict"`, GPUs: "count = 1"}, says: []string{"nobody passes head in queue strict"}, try: "a place ahead: nobody passes head",
			cure: queues("queue \"strict\" {\n  order = \"fcfs\"\n  backfill = \"easy\"\n}\n")},
		{name: "cap on running jobs", code: "QUOTA", before: queues("queue \"capped\" {\n  running_max = 1\n}\n"), first: []harness.Work{{ID: "first", Settings: `queue = "capped"`}},
			job: harness.Work{ID: "w", Settings: `queue = "capped"`}, says: []string{"queue capped: it would exceed the cap on running jobs by 1"}, try: "1 more running jobs in the cap of queue capped",
			cure: queues("queue \"capped\" {\n  running_max = 2\n}\n")},
		{name: "two limits", code: "QUOTA", before: queues("queue \"outer\" {\n  limit = { gpus = 3 }\n}\nqueue \"outer/inner\" {\n  limit = { gpus = 2 }\n}\n"),
			job:  harness.Work{ID: "w", Settings: `queue = "outer/inner"`, Group: "count = 2", GPUs: "count = 2"},
			says: []string{"1 of 2 placed", "queue outer/inner: it would exceed the limit of gpu by 2 GPUs"}, try: "2 more GPUs in the limit of queue outer/inner, and 1 more GPU in the limit of queue outer",
			cure: queues("queue \"outer\" {\n  limit = { gpus = 4 }\n}\nqueue \"outer/inner\" {\n  limit = { gpus = 4 }\n}\n")},
		{name: "gang", code: "GANG", first: []harness.Work{filler("one", "1")}, job: harness.Work{ID: "w", Group: gang, GPUs: "count = 8"},
			says: []string{"1 of 2 members found", "1 more member would find a place"}, try: "7 GPUs instead of 8"},
		{name: "topology", code: "TOPOLOGY", first: []harness.Work{filler("one", "4"), filler("two", "4")},
			job:  harness.Work{ID: "w", Group: gang + "\n    topology = { across = \"leaf\", mode = \"required\" }", GPUs: "count = 4"},
			says: []string{"1 of 2 members found in one leaf"}, try: "a topology that is preferred"},
		{name: "fragmentation", code: "FRAGMENTATION", first: []harness.Work{{ID: "half", Group: "count = 16", GPUs: `memory = "50GiB"`}}, job: harness.Work{ID: "w", GPUs: `memory = "40GiB"`},
			says: []string{"GPU memory left only in pieces, short by 10.9 GiB", "the largest free slot is 29.1 GiB"}, try: "29.1 GiB (29796 MiB) of GPU memory instead of 40 GiB"},
		{name: "constraint", code: "CONSTRAINT", job: harness.Work{ID: "w", Settings: "constraint {\n    attribute = \"${attr.kernel.name}\"\n    value     = \"plan9\"\n  }"},
			says: []string{"excluded by constraint ${attr.kernel.name} = plan9", "never"}, try: "without the constraint ${attr.kernel.name} = plan9"},
		{name: "model", code: "CONSTRAINT", job: harness.Work{ID: "w", GPUs: `count = 1, model = "A100"`},
			says: []string{"without device nvidia/gpu A100", "a node with device nvidia/gpu A100 becomes ready"}, try: "any model of GPU instead of A100"},
		{name: "taint", code: "CONSTRAINT", before: meta("taint.team=x:no-schedule"), job: harness.Work{ID: "w", GPUs: "count = 1"},
			says: []string{"a node without taint team=x becomes ready, or the job has a toleration"}, cure: meta("-unset", "taint.team")},
		{name: "device", code: "DEVICE_UNHEALTHY", before: func(f *harness.Fleet) { lose(f, 0, "one", "two") }, job: harness.Work{ID: "w", GPUs: "count = 8"},
			says: []string{"with unhealthy nvidia/gpu, short by 1 GPU"}, try: "node ", cure: func(f *harness.Fleet) { find(f, 0, "one"); find(f, 0, "two") }},
		{name: "eligibility", code: "NODE_INELIGIBLE", before: both("-disable"), job: harness.Work{ID: "w", GPUs: "count = 1"},
			says: []string{"2 nodes: not eligible (node ineligible)"}, try: "node ", cure: both("-enable")},
		{name: "reservation", code: "RESERVATION", before: func(f *harness.Fleet) {
			ids := strings.Fields(f.Must("node", "status", "-q"))
			f.Must("reservation", "apply", f.File("r.hcl", "reservation \"demo\" {\n  nodes = [\""+strings.Join(ids, "\", \"")+"\"]\n  duration = \"2h\"\n  users = [\"nobody-here\"]\n}\n"))
		}, job: harness.Work{ID: "w", GPUs: "count = 1"}, says: []string{"kept by reservation demo", "reservation demo is over, or deleted"}, try: "without what is reserved for others (reservation demo)",
			cure: func(f *harness.Fleet) { f.Must("reservation", "delete", "demo") }},
		{name: "dependency", code: "DEPENDENCY", job: harness.Work{ID: "w", Settings: "depends_on \"prep\" {\n  }"},
			says: []string{`job "prep" has not ended well yet: it is not registered`, "that job gets there"}, try: "without the dependency",
			cure: func(f *harness.Fleet) { f.Run(harness.Work{ID: "prep", Script: "true"}) }, after: func(f *harness.Fleet) { f.Stop(harness.Work{ID: "prep"}) }},
		{name: "begin time", code: "BEGIN_TIME", job: harness.Work{ID: "w", Settings: `begin = "2098-12-01T00:00:00Z"`}, says: []string{"it begins at 2098-12-01T00:00:00Z"}, try: "an earlier begin time",
			cure: func(f *harness.Fleet) {
				f.Run(harness.Work{ID: "w", Settings: `begin = "` + time.Now().Add(time.Second).UTC().Format(time.RFC3339) + `"`})
			}},
		{name: "held", code: "HELD", job: harness.Work{ID: "w", Settings: "hold = true"}, says: []string{"it is on hold until it is released"}, try: "released (muster job release w)",
			cure: func(f *harness.Fleet) { f.Must("job", "release", "w") }},
		{name: "rate limit", code: "RATE_LIMIT",
			before: queues("queue \"low\" {\n  preempt_min_runtime = \"1s\"\n}\nqueue \"urgent\" {\n  preempt = \"priority\"\n  preempt_rate = 1\n}\n"),
			first: []harness.Work{victim("v1", `echo told; exit 0`), victim("v2", `echo told; exit 0`),
				{ID: "u1", Settings: urgent, GPUs: "count = 8"}},
			job: harness.Work{ID: "w", Settings: urgent, GPUs: "count = 8"}, says: []string{"preemptions of queue urgent are limited to so many an hour"}, try: "a higher preempt_rate",
			cure: queues("queue \"urgent\" {\n  preempt = \"priority\"\n  preempt_rate = 4\n}\n")},
		{name: "preemption", code: "PREEMPTION_PENDING", before: queues("queue \"urgent\" {\n  preempt = \"priority\"\n}\n"), first: []harness.Work{victim("v1", ":"), victim("v2", ":")},
			job: harness.Work{ID: "w", Settings: urgent, GPUs: "count = 8"}, says: []string{"has yet to make room (1 allocation)", "they have ended"},
			cure: func(*harness.Fleet) {}}, // the grace of the victims cures it
		{name: "driver", code: "DRIVER", job: harness.Work{ID: "w", Driver: "fake"}, says: []string{"without driver fake", "a node with driver fake becomes ready"},
			cure: func(f *harness.Fleet) {
				simulated = harness.Start(f.T, nil, "nodesim", nil, "nodesim", "-count", "1", "-server-addr", f.RPC)
			}, after: func(f *harness.Fleet) { simulated.Kill9() }},
	}
}

// timed holds a whole node for a time that is known.
func timed(id, node, limit string) harness.Work {
	w := filler(node, "8")
	w.ID, w.Settings = id, w.Settings+"\n  runtime = { limit = \""+limit+"\" }"
	return w
}

// victim is a job that holds a node and is preempted: told is the script that it runs on the notice.
func victim(id, told string) harness.Work {
	return harness.Work{ID: id, GPUs: "count = 8", Settings: "queue = \"low\"\n  priority = 10", Group: `checkpoint = { signal = "SIGUSR1", on = ["preempt"], grace = "6s" }`,
		Script: "trap '" + told + "' USR1; while :; do sleep 0.2; done"}
}

func lose(f *harness.Fleet, gpu int, nodes ...string) {
	f.T.Helper()
	for _, n := range nodes {
		if err := f.GPUs(n).Lose(gpu); err != nil {
			f.T.Fatal(err)
		}
	}
	healthy(f, 16-len(nodes))
}

func find(f *harness.Fleet, gpu int, node string) {
	f.T.Helper()
	if err := f.GPUs(node).Find(gpu); err != nil {
		f.T.Fatal(err)
	}
}

// healthy waits until so many GPUs are known to be healthy.
func healthy(f *harness.Fleet, want int) {
	f.T.Helper()
	harness.Eventually(f.T, 60*time.Second, "the GPUs' health is known", func() (bool, string) {
		var list []struct {
			NodeResources struct {
				Devices []struct{ Instances []struct{ Healthy bool } }
			}
		}
		if err := f.API.Call("GET", "/v1/nodes?resources=true", nil, &list); err != nil {
			return false, err.Error()
		}
		n := 0
		for _, x := range list {
			for _, d := range x.NodeResources.Devices {
				for _, i := range d.Instances {
					if i.Healthy {
						n++
					}
				}
			}
		}
		return n == want, ""
	})
}

// TestReasons makes a job wait for each reason there is, reads the reason where people read it, does what is advised, and
// sees the job start.
func TestReasons(t *testing.T) {
	f := fleet(t)
	for _, c := range reasons() {
		ok := t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			f.T = t
			began := time.Now()
			if c.before != nil {
				c.before(f)
			}
			for _, w := range c.first {
				f.Run(w)
				if w.ID != "head" && w.ID != "wide" {
					n := 1
					if w.ID == "half" {
						n = 16
					}
					f.Running(w, n)
				}
				if w.ID == "v2" {
					time.Sleep(1200 * time.Millisecond) // preempt_min_runtime
				}
			}
			f.Run(c.job)
			waits(f, c.job, c.code, c.says...)
			told := time.Since(began)
			if c.try != "" {
				if change := advised(f, c.job, c.try); c.cure == nil {
					submit(f, change)
				}
			}
			if c.cure != nil {
				c.cure(f)
			}
			harness.Eventually(t, 60*time.Second, "the cured job starts", func() (bool, string) {
				as, err := f.API.Allocs(c.job.ID)
				why, _ := f.Muster("job", "why", c.job.ID)
				return err == nil && harness.Count(as, "running")+harness.Count(as, "complete") > 0 && !strings.Contains(why, "is pending"), why
			})
			t.Logf("%-18s told after %s, cured and started after %s", c.code, told.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			f.Stop(c.job)
			for i := len(c.first) - 1; i >= 0; i-- {
				f.Stop(c.first[i])
			}
			if c.after != nil {
				c.after(f)
			}
		})
		if !ok {
			t.Fatal("what follows would meet what this one left behind")
		}
	}
}
