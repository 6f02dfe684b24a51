package nomadlike

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestFilter(t *testing.T) {
	job := &structs.Job{ID: "train-7", Name: "train-7", Namespace: "default", Type: structs.JobBatch, Priority: 70, Meta: map[string]string{"team": "vision"}}
	node := &structs.Node{Name: "n1", Attributes: map[string]string{"kernel.name": "linux"}}
	for _, c := range []struct {
		kind, expr string
		obj        any
		want       bool
		err        string
	}{
		{"job", `ID == "train-7"`, job, true, ""},
		{"job", `ID != "train-7"`, job, false, ""},
		{"job", `ID matches "^train"`, job, true, ""},
		{"job", `Name contains "rain"`, job, true, ""},
		{"job", `Type == batch and Priority == 70`, job, true, ""},
		{"job", `Priority == 71`, job, false, ""},
		{"job", `Meta.team == vision`, job, true, ""},
		{"job", `Meta.other == vision`, job, false, ""},
		{"job", `"team" in Meta`, job, true, ""},
		{"job", `Periodic.Enabled == true`, job, false, ""},
		{"job", `Periodic.Spec matches "a"`, job, false, ""},
		{"job", `TaskGroups.0.Name == "g"`, job, false, ""},
		{"job", `Banana == 1`, nil, false, "Banana"},
		{"job", `Periodic.Banana == 1`, nil, false, "Banana"},
		{"job", `((((`, nil, false, "Failed to read filter"},
		{"job", `ID matches "a((("`, nil, false, "Failed to read filter"},
		{"cabbage", `ID == 1`, nil, false, "cabbage"},
		{"node", `Name == n1 and Attributes["kernel.name"] == linux`, node, true, ""},
		{"node", `Drivers.exec.Healthy == true`, node, false, ""},
	} {
		t.Run(c.expr, func(t *testing.T) {
			f, err := Filter(c.kind, c.expr)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: %s: want an error with %q, have %v", c.kind, c.expr, c.err, err)
				}
				return
			}
			if err != nil {
				t.Errorf("%s: %s: %v", c.kind, c.expr, err)
				return
			}
			if c.obj == nil {
				return
			}
			if ok, err := f(c.obj); err != nil || ok != c.want {
				t.Errorf("%s: %s: have %v, %v; want %v", c.kind, c.expr, ok, err, c.want)
			}
		})
	}
}
