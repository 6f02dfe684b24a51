package structs

import "testing"

// TestJoin: which groups of which jobs run as one.
func TestJoin(t *testing.T) {
	gang := func(name GroupName) *Group { return &Group{Name: name, Count: 2, Gang: &Gang{}} }
	plain := func(name GroupName, count int) *Group { return &Group{Name: name, Count: count} }
	for name, test := range map[string]struct {
		job  Job
		want string
	}{
		"groups of a batch job":         {Job{Type: JobBatch, Groups: []*Group{gang("a"), plain("b", 1)}}, "ab"},
		"a group of several":            {Job{Type: JobBatch, Groups: []*Group{plain("a", 2)}}, "a"},
		"a group of one":                {Job{Type: JobBatch, Groups: []*Group{plain("a", 1)}}, ""},
		"a gang alone":                  {Job{Type: JobBatch, Groups: []*Group{gang("a")}}, ""},
		"gangs of a service":            {Job{Type: JobService, Groups: []*Group{gang("a"), plain("b", 2), gang("c")}}, "ac"},
		"one gang of a service":         {Job{Type: JobService, Groups: []*Group{gang("a"), plain("b", 2)}}, ""},
		"a system job":                  {Job{Type: JobSystem, Groups: []*Group{plain("a", 1), plain("b", 1)}}, ""},
		"an array":                      {Job{Type: JobBatch, Array: &Array{Count: 3}, Groups: []*Group{plain("a", 1)}}, ""},
		"a job that is not all_at_once": {Job{Type: JobBatch, Meta: map[string]string{"no": ""}, Groups: []*Group{gang("a"), plain("b", 1)}}, ""},
	} {
		j := test.job
		j.AllAtOnce = j.Meta == nil
		was := *j.Groups[0]
		j.Join()
		got := ""
		for _, g := range j.Groups {
			if g.Joint {
				got += string(g.Name)
			}
		}
		if got != test.want || j.IsJoint() != (test.want != "") {
			t.Errorf("%s: joint groups %q, want %q", name, got, test.want)
		}
		if test.job.Groups[0].Joint != was.Joint {
			t.Errorf("%s: Join has changed a group that others may hold", name)
		}
		if j.AllAtOnce = false; test.want != "" {
			if j.Join(); j.IsJoint() {
				t.Errorf("%s: still joint in a version that is not all_at_once", name)
			}
		}
	}
	j := Job{Type: JobBatch, AllAtOnce: true, Groups: []*Group{gang("a"), plain("b", 3)}}
	if j.Join(); j.Groups[1].Least() != 3 || !j.Together("a", "b") || !j.Together("a", "a") || j.Together("a", "c") {
		t.Errorf("group b needs %d of 3; together with a: %t", j.Groups[1].Least(), j.Together("a", "b"))
	}
}
