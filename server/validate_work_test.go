package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Checks of a job that only a server can do: by its clock, its policies, its nodes and registered jobs.
func TestCheckWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 1)
		register(t, s, passJob("b", 1, func(j *structs.Job) { j.Type, j.Depends = structs.JobBatch, []structs.Dependency{{Name: "a"}} }))
		register(t, s, passJob("svc", 1, nil))
		for name, c := range map[string]struct {
			edit func(*structs.Job)
			want string
		}{
			"deadline":  {func(j *structs.Job) { j.Deadline = structs.LogTimeOf(time.Now().Add(-time.Hour)) }, "is in the past"},
			"placement": {func(j *structs.Job) { j.Placement = "binpak" }, `did you mean "binpack"?`},
			"circle":    {func(j *structs.Job) { j.Depends = []structs.Dependency{{Name: "b"}} }, "depends_on: a circle: a -> b -> a"},
			"service":   {func(j *structs.Job) { j.Depends = []structs.Dependency{{Name: "svc"}} }, "does not end"},
			"namespace": {func(j *structs.Job) { j.Depends = []structs.Dependency{{Name: "x", Namespace: "nope"}} }, `there is no namespace "nope"`},
			"level": {func(j *structs.Job) {
				j.Groups[0].Gang, j.Groups[0].Topology = &structs.Gang{}, &structs.Topology{Across: "leav", Mode: structs.TopologyRequired}
			}, "no node of pool \"default\" has that level"},
			"reserved": {func(j *structs.Job) { j.Groups[0].Tasks[0].Name = ".fetch" }, "the name begins with a dot"},
			"array":    {func(j *structs.Job) { j.Array = &structs.Array{Count: 2, Params: map[string][]string{"A": {"1"}}} }, "has 1 values for 2 indices"},
		} {
			j := passJob("a", 1, func(j *structs.Job) { j.Type = structs.JobBatch; j.Groups[0].Reschedule = structs.Reschedule{} })
			if errs := s.endpoints.CheckJob(j); len(errs) > 0 {
				t.Fatalf("the plain job: %q", errs)
			}
			c.edit(j)
			if errs := strings.Join(s.endpoints.CheckJob(j), "\n"); !strings.Contains(errs, c.want) {
				t.Errorf("%s: want %q, got %q", name, c.want, errs)
			}
		}
	})
}
