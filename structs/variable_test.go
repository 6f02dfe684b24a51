package structs

import (
	"fmt"
	"strings"
	"testing"
)

func TestCheckVariablePath(t *testing.T) {
	for path, ok := range map[string]bool{
		"a": true, "a/b-c_d~e/F9": true, "nomad/jobs": true, "nomad/jobs/web/api/server": true, "nomad/job-templates/x": true, "nomadic": true,
		"": false, "/a": false, "a/": false, "a//b": false, "a b": false, "a@b": false, "ä": false, "nomad": false, "nomad/x": false,
		"nomad/jobs/a/b/c/d": false, "nomad/job-templates": false, "nomad/job-templates/a/b": false, "nomad/jobs/": false,
		strings.Repeat("a", VariablePathMax): true, strings.Repeat("a", VariablePathMax+1): false,
	} {
		t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
			if err := CheckVariablePath(path); (err == nil) != ok {
				t.Errorf("%q: %v, want it taken: %v", path, err, ok)
			}
		})
	}
}

func TestTaskMayRead(t *testing.T) {
	a := &Allocation{JobID: "web", Group: "api", Job: &Job{ID: "web"}}
	for path, want := range map[string][2]bool{ // by the task "server", and by the allocation as a whole
		"nomad/jobs": {true, true}, "nomad/jobs/web": {true, true}, "nomad/jobs/web/api": {true, true}, "nomad/jobs/web/api/server": {true, false},
		"nomad/jobs/web/api/other": {}, "nomad/jobs/web/other": {}, "nomad/jobs/webs": {}, "nomad/jobs/other": {}, "a": {}, "": {}, "nomad": {}, "nomad/jobs/web/api/": {},
	} {
		t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
			if got := [2]bool{TaskMayRead(a, "server", path), TaskMayRead(a, "", path)}; got != want {
				t.Errorf("%q: %v, want %v", path, got, want)
			}
		})
	}
	child := &Allocation{JobID: "web/periodic-1", Group: "api", Job: &Job{ID: "web/periodic-1", ParentID: "web"}}
	if !TaskMayRead(child, "server", "nomad/jobs/web/api/server") || TaskMayRead(child, "server", "nomad/jobs/web/periodic-1") {
		t.Error("the children of a job read what is their parent's")
	}
	// A job whose id has a slash must not read what belongs to a group of another one.
	if sly := (&Allocation{JobID: "web/api", Group: "g", Job: &Job{ID: "web/api"}}); TaskMayRead(sly, "t", "nomad/jobs/web/api") {
		t.Error("a job named web/api reads the variables of group api of job web")
	}
}
