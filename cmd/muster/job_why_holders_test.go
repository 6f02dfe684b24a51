package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike"
)

// TestHeldBy: work that is in the way only because it is not preemptible is shown with the cure, and jobs that the caller may
// not see are counted.
func TestHeldBy(t *testing.T) {
	text := func(h *nomadlike.Holders) string {
		var out []string
		adviceLines(&nomadlike.Advice{Holders: h}, func(k, f string, args ...any) { out = append(out, k+": "+fmt.Sprintf(f, args...)) })
		return strings.Join(out, "\n")
	}
	cure := "\nheld by:   mark such work preemptible (preemptible = true, muster run -preemptible), or wait: "
	for _, x := range []struct {
		h    nomadlike.Holders
		want string
	}{
		{nomadlike.Holders{Allocations: 1, Jobs: 1, Names: []string{"old"}}, "held by: 1 allocation of 1 job (old), only because they are not preemptible" + cure + "no end is known"},
		{nomadlike.Holders{Allocations: 3, Jobs: 2, Names: []string{"old"}, Until: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC).UnixNano()},
			"held by: 3 allocations of 2 jobs (old and 1 more), only because they are not preemptible" + cure + "it should have ended by 2026-05-01 12:00"},
	} {
		if got := text(&x.h); got != x.want {
			t.Errorf("%+v is shown as\n%s\nwant\n%s", x.h, got, x.want)
		}
	}
}
