package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestSimInputs: four jobs of 2 GPUs and an hour each on a node with 8. Each kind of input of a cluster changes what
// becomes of them, and what a server would refuse is refused in one sentence.
func TestSimInputs(t *testing.T) {
	const base = "sim -json -trace testdata/sim/team.csv -nodes 1x8 "
	for _, c := range []struct {
		args           string
		wait, makespan float64 // seconds
	}{
		{"", 0, 3600},
		{"-queues testdata/sim/queues.hcl", 1800, 7200},                                                            // two at a time
		{"-quotas testdata/sim/quotas.hcl -namespaces testdata/sim/namespaces.hcl", 5400, 14400},                   // one at a time
		{"-reservations testdata/sim/reservations.hcl", 3 * 3600, 4 * 3600},                                        // the node is another user's at first
		{"-reservations testdata/sim/dated.hcl -start 2026-01-31T08:00:00Z", 4 * 3600, 5 * 3600},                   // maintenance from the beginning
		{"-reservations testdata/sim/dated.hcl -start 2026-01-31T12:00:00Z", 0, 3600},                              // it is over
		{"-reservations testdata/sim/dated.hcl -start 2026-01-31T09:00:00+01:00", 4 * 3600, 5 * 3600},              // the same instant
		{"-events testdata/sim/events.csv", 1800, 5400},                                                            // down for half an hour
		{"-events testdata/sim/events.csv -checkpoint -1s", 1800, 7200},                                            // and what ran is lost
		{"-events testdata/sim/drain.csv", 5 * 3600, 6 * 3600},                                                     // not before the drain ends
		{"-events testdata/sim/late.csv", 0, 3600},                                                                 // running work stays
		{"-events testdata/sim/deadline.csv", 1200, 4800},                                                          // stopped at the deadline
		{"-queues testdata/sim/queues.hcl -policy fcfs+easy -events testdata/sim/drain.csv", 5*3600 + 1800, 25200}, // together
	} {
		r := newAgentFake(t).run(t, "", strings.Fields(base+c.args)...)
		if r.code != 0 {
			t.Errorf("%s: exit status %d: %s", c.args, r.code, r.errOut)
			continue
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(r.out), &got); err != nil {
			t.Fatal(err)
		}
		if got["mean_wait"] != c.wait || got["makespan"] != c.makespan {
			t.Errorf("%q: mean_wait %v and makespan %v, want %v and %v", c.args, got["mean_wait"], got["makespan"], c.wait, c.makespan)
		}
	}
	for args, want := range map[string]string{
		"-reservations testdata/sim/dated.hcl":                 `reservation "repair" has dates: say with -start when the trace begins`,
		"-reservations testdata/sim/dated.hcl -start noon":     `-start is "noon"; want a time such as 2026-01-31T08:00:00Z`,
		"-reservations testdata/sim/stranger.json":             `reservation "x": there is no node "node-9"`,
		"-events testdata/sim/events.csv -mtbf 1h":             "give one of -events and -mtbf",
		"-events testdata/sim/jobs.csv":                        `there is no column "at"`,
		"-events testdata/sim/late_deadline.csv":               `late_deadline.csv:2: column deadline: "10m" is given, and the event is no drain`,
		"-quotas testdata/sim/quotas.hcl":                      "give both -quotas and -namespaces",
		"-queues testdata/sim/quotas.hcl":                      `want queue "name" { ... }, not quota`,
		"-queues testdata/sim/orphan.json":                     `queue "research/nlp": its parent "research" does not exist`,
		"-queues testdata/sim/other.json":                      `testdata/sim/team.csv:2: job "a1": there is no queue "research"`,
		"-format swf -procs 3 -queues testdata/sim/queues.hcl": "a trace of format swf is replayed with its own protocol, without queues: use csv, acct or snapshot",
		"-seeds 3":         "a trace of format csv is replayed without -seeds: it is for openb",
		"-durations known": "without -durations: it is for muri",
		"-procs 3":         "without -procs: it is for swf",
		"-notice":          "without -notice: it is for snapshot",
		"-mttr 3h":         "-mttr is about nodes that fail: give -mtbf, too",
		"-format muri -trace testdata/sim/muri.csv -mtbf 1h":                                "a trace of format muri is replayed without -mtbf: it is for csv, acct, snapshot",
		"-format muri -trace testdata/sim/muri.csv -preemptible":                            "without -preemptible",
		"-format muri -trace testdata/sim/muri.csv -estimate-error 1":                       "without -estimate-error",
		"-format muri -trace testdata/sim/muri.csv -policy srsf -checkpoint 1h":             "policy srsf is replayed with its published protocol, without -checkpoint and -queues",
		"-format muri -trace testdata/sim/muri.csv -events testdata/sim/events.csv":         "a trace of format muri is replayed with its own protocol, without node events",
		"-format muri -trace testdata/sim/muri.csv -restart-cost 1m":                        "without -restart-cost",
		"-format openb -trace testdata/sim/pods.csv -nodes testdata/sim/nodes.csv -limit 1": "without -limit",
		"-format swf -trace testdata/sim/log.swf -procs 10":                                 "without -nodes",
	} {
		r := newAgentFake(t).run(t, "", strings.Fields(base+args)...)
		if r.code != 1 || !strings.Contains(r.errOut, want) || strings.Count(strings.TrimSpace(r.errOut), "\n") > 0 {
			t.Errorf("%q: exit status %d: %s", args, r.code, r.errOut)
		}
	}
}
