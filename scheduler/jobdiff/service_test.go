package jobdiff

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// A difference shows the fields of a service as the job sets them, not those derived from them.
func TestDiffOfServices(t *testing.T) {
	job := func(raw string, checked bool) *structs.Job {
		return &structs.Job{ID: "j", Name: "j", Groups: []*structs.Group{{Name: "g", Services: []structs.Service{{Name: "api", PortLabel: "http", Raw: structs.RawConfig(raw), Checked: checked}}}}}
	}
	b, err := JSON(job(`{"Name":"api","Provider":"nomad"}`, false), job(`{"Name":"api","Provider":"nomad","Checks":[{"Type":"tcp"}]}`, true), false)
	if err != nil || !strings.Contains(string(b), "Checks") || strings.Contains(string(b), `"Checked"`) {
		t.Errorf("%s %v", b, err)
	}
}
