package duty_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// While all of a large cluster starts, every job is due each second. One look at all of their allocations took a leader half a
// minute; the duty looks at a portion, rests, and has looked at each of them in the end.
func TestRolloutsLookAtPortions(t *testing.T) {
	const jobs, count = 30, 1000
	d := duty.NewRollouts()
	w := newWorld(t, d)
	w.addNode("n0")
	for i := range jobs {
		id := fmt.Sprint("j", i)
		j := newJob(id, structs.JobService, count)
		j.Groups[0].Update = &structs.Update{MaxParallel: 1, ProgressDeadline: time.Hour}
		w.register(j)
		w.place(id, []string{"n0"}, count)
	}
	d.Load(w.snap(), w.now)
	looks := 0
	for at := w.now; ; looks++ {
		if looks > jobs {
			t.Fatal("still due: ", at)
		}
		_, next := d.Due(w.snap(), at)
		if next == 0 { // all jobs are looked at, and wait for their allocations
			break
		}
		if again, then := d.Due(w.snap(), at); len(again) != 0 || then < next {
			t.Fatalf("asked again at once: %d commands, next %d, before %d", len(again), then, next)
		}
		if rest := next.Sub(at); rest < 100*time.Millisecond {
			t.Fatalf("look %d rests %s", looks, rest)
		}
		at = next
	}
	if looks < 4 {
		t.Errorf("%d looks at %d allocations", looks, jobs*count)
	}
}
