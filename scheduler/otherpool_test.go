package scheduler_test

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// A node that no job may use changes no placement and no reservation.
func TestNodeOfAnotherPoolChangesNothing(t *testing.T) {
	promises, later := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 11))
		n, none := node(1), node(2)
		none.Pool = "other"
		var as []*structs.Allocation
		for i, left := 0, int64(4000); left > 200; i++ {
			j := timed("held", 1, 100+r.Int64N(900), 0, time.Duration(1+r.IntN(20))*time.Hour)
			j.Groups[0].Tasks[0].Resources.CPU = min(j.Groups[0].Tasks[0].Resources.CPU, left)
			left -= j.Groups[0].Tasks[0].Resources.CPU
			a := holds(n, j, i, time.Duration(1+r.IntN(int(j.Runtime.Limit/time.Minute)))*time.Minute, nil)
			switch r.IntN(8) {
			case 0:
				a.Expect = time.Duration(1+r.IntN(600)) * time.Minute
			case 1:
				a.Desired = structs.DesiredStop
			case 2:
				j.Runtime.Limit = 0
			}
			as = append(as, a)
		}
		in := scheduler.Input{Now: bookNow, Config: rules(structs.BackfillConservative), Seed: seed}
		for i := range 14 {
			j := timed("job"+string(rune('a'+i)), 1, 1+r.Int64N(4200), 0, time.Duration(1+r.IntN(30))*30*time.Minute)
			if r.IntN(9) == 0 {
				j.Runtime.Limit = 0
			}
			in.Pending = append(in.Pending, load(j, i))
		}
		var out [2]string
		var rs [2][]*structs.Reservation
		for k, ns := range [][]*structs.Node{{n}, {n, none}} {
			in.View = model.NewView(10, ns, as, nil)
			plan, _ := scheduler.Schedule(in, binpack)
			out[k], rs[k] = placed(plan)
		}
		if out[0] != out[1] || !reflect.DeepEqual(rs[0], rs[1]) {
			t.Fatalf("seed %d: without the node of another pool %q %v, with it %q %v", seed, out[0], rs[0], out[1], rs[1])
		}
		promises += len(rs[0])
		for _, x := range rs[0] {
			if x.Start > bookNow {
				later++
			}
		}
	}
	if promises < 1000 || later < 1000 {
		t.Fatalf("%d promises, %d of them later: the cases say little", promises, later)
	}
}
