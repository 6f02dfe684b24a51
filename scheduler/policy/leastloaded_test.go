package policy

import (
	"testing"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// TestLeastLoadedFailures: of two nodes with equal work the one where less of it failed is better, and failures weigh
// at most as much as one allocation for each GPU.
func TestLeastLoadedFailures(t *testing.T) {
	fit := func(allocs, success int64) int64 {
		u := &search.Use{GPUs: 4, Allocs: allocs}
		if success >= 0 {
			u.Past = search.Past{Ends: 10, Success: success}
		}
		return leastLoaded{}.Fit(u)
	}
	if a, b := fit(2, -1), fit(2, model.Micro); a != b {
		t.Errorf("a node without a past has %d, one where all went well %d", a, b)
	}
	if good, bad := fit(2, model.Micro), fit(2, model.Micro/2); bad >= good {
		t.Errorf("half of the work failing gives %d, none %d", bad, good)
	}
	if all, more := fit(0, 0), fit(4, model.Micro); all != more {
		t.Errorf("an idle node where everything fails has %d, a good one with an allocation for each GPU %d", all, more)
	}
	if fails, full := fit(0, 0), fit(5, model.Micro); fails <= full {
		t.Errorf("an idle node where everything fails has %d, a good one with more than that %d", fails, full)
	}
}
