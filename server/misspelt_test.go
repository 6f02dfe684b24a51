package server

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestWarnsOfWhatIsNotThere: what is accepted because it may come later, and may as well be misspelt, has a warning;
// queues that every cluster has cannot be deleted, and the answer says so.
func TestWarnsOfWhatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		submit := func(id string, on ...structs.Dependency) string {
			j := apiJob(id, 1)
			j.Depends = on
			return call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j}).Warnings
		}
		if w := submit("eval", structs.Dependency{Name: "trian"}); !strings.Contains(w, `depends on job "trian", which namespace "default" does not have`) {
			t.Errorf("a dependency that does not exist: %q", w)
		}
		submit("train")
		if w := submit("eval2", structs.Dependency{Name: "after", JobID: "train"}); w != "" {
			t.Errorf("a dependency that exists: %q", w)
		}

		quota := func(region string) []string {
			return call(t, s, methods.QuotaUpsert, rpc.Header{}, &methods.QuotaUpsertRequest{Quota: &structs.QuotaSpec{Name: "q", Limits: []structs.QuotaLimit{{Region: region, Hard: structs.Unlimited}}}}).Warnings
		}
		if w := strings.Join(quota("europe"), " "); !strings.Contains(w, `nothing is limited here by what is for region "europe": this is region "global"`) {
			t.Errorf("a limit for another region: %q", w)
		}
		if w := quota("global"); len(w) > 0 {
			t.Errorf("a limit for this region: %q", w)
		}

		for _, q := range []string{"default", "root"} {
			_, err := callErr(s, methods.QueueDelete, rpc.Header{}, &methods.NameRequest{Name: q})
			if structs.CodeOf(err) != structs.CodeInvalid || !strings.Contains(err.Error(), "is built in and cannot be deleted") {
				t.Errorf("delete queue %s: %v", q, err)
			}
		}
	})
}
