package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestAllocVerbsTakeAJob: each command on an allocation takes a job with -job, and uses a running allocation of it. Without -job, what
// cannot be an allocation is an error that names the flag.
func TestAllocVerbsTakeAJob(t *testing.T) {
	rest := map[string]string{"stop": "-detach", "signal": "-s SIGHUP", "exec": "-i=false", "port-forward": "", "logs": "-stdout"}
	after := map[string]string{"exec": " true", "port-forward": " 80"}
	for _, c := range newAlloc(&env{}).Commands() {
		if c.Name() == "cp" { // what is in front of the colon
			continue
		}
		t.Run(c.Name(), func(t *testing.T) {
			f := newAgentFake(t)
			for _, v := range []string{"suspend", "resume"} {
				f.answers["PUT /v1/allocation/"+allocA+"/"+v] = map[string]any{"AllocIDs": []string{allocA}}
			}
			line := func(job string) []string {
				return strings.Fields(fmt.Sprintf("alloc %s %s %s%s", c.Name(), rest[c.Name()], job, after[c.Name()]))
			}
			r := f.run(t, "", line("-job exam")...)
			if !strings.Contains(f.log(), "GET /v1/job/example/allocations") || !strings.Contains(f.log(), "GET /v1/allocation/"+allocA) || strings.Contains(r.errOut, "-job") {
				t.Errorf("%s\n%s\nasked\n%s", r.out, r.errOut, f.log())
			}
			if c.Name() != "exec" && c.Name() != "port-forward" && r.code != 0 {
				t.Errorf("exit status %d: %s", r.code, r.errOut)
			}
			if r := f.run(t, "", line("sweep")...); r.code != 1 || !strings.Contains(r.errOut, "-job takes a job: -job sweep") {
				t.Errorf("a job without -job: exit status %d: %s", r.code, r.errOut)
			}
		})
	}
}
