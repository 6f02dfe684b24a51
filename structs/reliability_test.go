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
	if ready, lost := n.Past(at(100)); ready != 25*day || lost != 2 { // 10 of 20 days, 9, 1 and 5
		t.Errorf("ready for %s, lost %d times", ready, lost)
	}
	n.Status = NodeDown
	if ready, _ := n.Past(at(100)); ready != 20*day {
		t.Errorf("down: ready for %s", ready)
	}
	if ready, _ := (&Node{Status: NodeReady, StatusAt: at(20)}).Past(at(100)); ready != 30*day {
		t.Errorf("ready since long ago: %s", ready)
	}
}
