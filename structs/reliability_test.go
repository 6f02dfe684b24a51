package structs

import (
	"testing"
	"time"
)

// TestMeanTimeToLoss: a node of which nothing is known is as reliable as the cluster, time without a loss makes it better, a loss
// worse, and with much time it is what was seen.
func TestMeanTimeToLoss(t *testing.T) {
	const h = time.Hour
	for _, c := range []struct {
		ready   time.Duration
		lost    int64
		typical time.Duration
		want    time.Duration
	}{
		{0, 0, 1000 * h, 1000 * h},
		{500 * h, 0, 1000 * h, 1500 * h},
		{0, 1, 1000 * h, 500 * h},
		{500 * h, 2, 1000 * h, 500 * h},
		{700 * h, 15, 100 * h, 50 * h},
		{500 * h, 2, 0, 0},
		{ReadyPeriodsAge, 0, 290 * 365 * 24 * h, 290*365*24*h + ReadyPeriodsAge},
	} {
		if got := MeanTimeToLoss(c.ready, c.lost, c.typical); got != c.want {
			t.Errorf("ready for %s, lost %d times, %s in the cluster: %s, want %s", c.ready, c.lost, c.typical, got, c.want)
		}
	}
}

// TestNodePastIsOfThirtyDays: what ended before does not count, and a time that began before counts in part.
func TestNodePastIsOfThirtyDays(t *testing.T) {
	const day = 24 * time.Hour
	at := func(days int) LogTime { return LogTime(time.Duration(days) * day) }
	n := &Node{Status: NodeReady, StatusAt: at(95), Periods: []ReadyPeriod{{at(1), at(50), true}, {at(60), at(80), true}, {at(81), at(90), false}, {at(91), at(92), true}}}
	if ready, lost, _ := n.Past(at(100)); ready != 25*day || lost != 2 { // 10 of 20 days, 9, 1 and 5
		t.Errorf("ready for %s, lost %d times", ready, lost)
	}
	n.Status = NodeDown
	if ready, _, _ := n.Past(at(100)); ready != 20*day {
		t.Errorf("down: ready for %s", ready)
	}
	if ready, _, _ := (&Node{Status: NodeReady, StatusAt: at(20)}).Past(at(100)); ready != 30*day {
		t.Errorf("ready since long ago: %s", ready)
	}
}

// TestBroke: a GPU that fails while its node takes work counts once, together with others that fail soon after it. What was not known
// before, stays failed, or failed during maintenance does not count, and of many faults both faults and hours are of a shorter time.
func TestBroke(t *testing.T) {
	now := LogTime(40 * 24 * time.Hour)
	node := func(failed ...bool) *Node {
		n := &Node{Status: NodeReady, Eligibility: NodeEligible, Resources: NodeResources{Devices: []DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100"}}}}
		for i, f := range failed {
			g := &n.Resources.Devices[0]
			g.Instances = append(g.Instances, DeviceInstance{ID: string(rune('a' + i)), Healthy: !f, Failed: f})
		}
		return n
	}
	n := node(false, true)
	if d := n.Broke(node(false, false), now); d == nil || d.ID != "b" || len(n.GPUFaults) != 1 || n.GPUFaults[0] != now || !n.WasLost() {
		t.Fatalf("failed %+v, faults %v", d, n.GPUFaults)
	}
	shut, busy := node(false, false), node(false, false)
	shut.Eligibility, busy.Drain = NodeIneligible, &DrainStrategy{}
	for what, old := range map[string]*Node{"it was failed before": node(false, true), "it is new": node(false), "ineligible": shut, "draining": busy} {
		if n := node(false, true); n.Broke(old, now) != nil || n.GPUFaults != nil || n.WasLost() {
			t.Errorf("%s: faults %v", what, n.GPUFaults)
		}
	}
	ill := node(false, false)
	ill.Resources.Devices[0].Instances[1].Healthy = false // the driver does not answer
	if ill.Broke(node(false, false), now) != nil {
		t.Error("a GPU that is only unhealthy counts")
	}
	next := node(true, true)
	next.GPUFaults = n.GPUFaults
	if next.Broke(n, now.Add(GPUFaultGap-1)) != nil || len(next.GPUFaults) != 1 {
		t.Errorf("another one soon after: faults %v", next.GPUFaults)
	}
	if next.Broke(n, now.Add(GPUFaultGap)) == nil || len(next.GPUFaults) != 2 || len(n.GPUFaults) != 1 {
		t.Errorf("another one later: faults %v, before %v", next.GPUFaults, n.GPUFaults)
	}
	if next.Broke(n, now.Add(ReadyPeriodsAge+time.Hour)) == nil || len(next.GPUFaults) != 1 {
		t.Errorf("a month later: faults %v", next.GPUFaults)
	}
	often := node(true)
	for i := range 3 * GPUFaultsKept {
		often.Broke(node(false), now.Add(time.Duration(i)*time.Hour))
	}
	if ready, lost, faults := often.Past(now.Add(3 * GPUFaultsKept * time.Hour)); ready != GPUFaultsKept*time.Hour || lost != 0 || faults != GPUFaultsKept {
		t.Errorf("often: ready for %s, lost %d times, %d faults", ready, lost, faults)
	}
}
