//go:build e2e

package queue

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/nomadlike"
)

// TestLimitsByModel: a queue and a quota limit the GPUs of a model on a cluster of two models. Work of the model waits, work
// of any model gets the other one, and the commands say what is held and what is in the way.
func TestLimitsByModel(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "hopper", GPUs: "4xH100"}, harness.FleetNode{Name: "ampere", GPUs: "2xA100"})
	says := func(what, text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(text) {
				t.Errorf("%s does not say %q:\n%s", what, w, text)
			}
		}
	}
	work := func(id, settings, model string) harness.Work {
		gpu := "count = 1"
		if model != "" {
			gpu += ", model = \"" + model + "\""
		}
		return harness.Work{ID: id, Settings: settings + "\n  runtime = { limit = \"1h\" }", GPUs: gpu}
	}
	// Errors name the line, before anything is sent; a warning names a model that no node has, and a similar one.
	out, err := f.Muster("queue", "apply", f.File("bad.hcl", "queue \"lab\" {\n}\nqueue \"lab2\" {\n  limit = { models = { H100 = -1 } }\n}\n"))
	if err == nil {
		t.Error("a negative limit is taken")
	}
	says("queue apply of a negative limit", out, `bad.hcl: line 3: queue "lab2": limit: models: "H100": -1 GPUs`)
	out, err = f.Muster("queue", "apply", f.File("bad.hcl", "queue \"lab\" {\n  guarantee = { gpus = 1, models = { H100 = 1 } }\n}\n"))
	if err == nil {
		t.Error("a guarantee by model is taken")
	}
	says("queue apply of a guarantee by model", out, `bad.hcl: line 1: queue "lab": guarantee: models`)
	out, _ = f.Muster("queue", "apply", f.File("bad.hcl", "queue \"lab\" {\n  limit = { models = { H100 = \"two\" } }\n}\n"))
	says("queue apply of a text", out, `on .*bad.hcl line 2`, `limit.models`)
	out = f.Must("queue", "apply", f.File("queues.hcl", "queue \"lab\" {\n  limit = { gpus = 5, models = { H100 = 2 } }\n  user_limit = { models = { A10O = 1 } }\n}\nqueue \"lab/sub\" {\n}\n"))
	says("queue apply", out, `Warning: queue lab: no node has a GPU of model "A10O"; did you mean "A100"`)

	one, two, three, any1, any2, any3 := work("one", "queue = \"lab\"", "H100"), work("two", "queue = \"lab/sub\"", "H100"), work("three", "queue = \"lab\"", "H100"),
		work("any1", "queue = \"lab\"", ""), work("any2", "queue = \"lab/sub\"", ""), work("any3", "queue = \"lab\"", "")
	for _, w := range []harness.Work{one, two} {
		f.Run(w)
		f.Running(w, 1)
	}
	f.Run(three)
	waits(f, three, "QUOTA")
	for _, w := range []harness.Work{any1, any2} {
		f.Run(w)
		f.Running(w, 1)
	}
	f.Run(any3)
	waits(f, any3, "RESOURCES")
	says("job why of a job of the model", f.Must("job", "why", "three"), `queue lab: it would exceed the limit of GPUs of model H100 by 1 GPU`)
	says("job why of a job of any model", f.Must("job", "why", "any3"), `1 node: too little nvidia/gpu, short by 1 GPU`, `1 node: queue lab: its limit of GPUs of model H100 is reached`)
	says("queue status", f.Must("queue", "status", "lab"), `Limit += 5 GPUs, 2 of model H100`, `Held += 4 GPUs, .*2 of model \S*A100.*, 2 of model \S*H100`)
	var q nomadlike.QueueState
	if err := f.API.Call("GET", "/v1/queue/lab", nil, &q); err != nil || q.Limit.Models["H100"] != 2 || len(q.Held.Models) != 2 {
		raw, _ := json.Marshal(q)
		t.Errorf("/v1/queue/lab: %v %s", err, raw)
	}
	f.Stop(one)
	f.Running(three, 1) // the place of the model goes to what waits for it first

	// A quota, over all queues.
	f.Must("quota", "apply", f.File("quota.hcl", `quota "team" {
  limit {
    region = "global"
    region_limit {
      device "nvidia/gpu/H100" {
        count = 1
      }
    }
    soft {
      device "nvidia/gpu/A100" {
        count = 1
      }
    }
  }
}
`))
	f.Must("namespace", "apply", "-quota", "team", "ml")
	first, second := work("first", "", "H100"), work("second", "", "H100")
	first.Namespace, second.Namespace = "ml", "ml"
	f.Run(first)
	f.Running(first, 1)
	f.Run(second)
	harness.Eventually(t, 20*time.Second, "the second waits for the quota", func() (bool, string) {
		text, _ := f.Muster("job", "why", "-namespace", "ml", "second")
		return strings.Contains(text, "quota team: it would exceed the limit of GPUs of model H100 by 1 GPU"), text
	})
	says("quota status", f.Must("quota", "status", "team"), `global +GPUs of model A100 +0 +unlimited +1`, `global +GPUs of model H100 +1 +1 +unlimited`)
}
