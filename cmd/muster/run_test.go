package main

import (
	"strings"
	"testing"
)

func TestRunMakesAJob(t *testing.T) {
	agent := newAgentFake(t)
	r := agent.run(t, "", "run", "-output", "-name", "x", "-gpus", "H100:8", "-nodes", "2", "-time", "2h", "--", "torchrun", "-v", "train.py")
	for _, want := range []string{`"Count": 2`, `"Count": 8`, `"Model": "H100"`, `"Gang": {`, `"Limit": 7200000000000`, `"-v"`, `"Mode": "node"`} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %s in\n%s%s", want, r.out, r.errOut)
		}
	}
	if r.code != 0 {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
	if r = agent.run(t, "", "run", "-gpus", "H100:A100", "--", "true"); r.code != 1 || !strings.Contains(r.errOut, "a number, a model, or both") {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
}
