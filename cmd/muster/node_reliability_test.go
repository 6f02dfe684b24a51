package main

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestReliabilityText: losses and faults of GPUs are counted apart, and what is expected has no comparison where the cluster has none.
func TestReliabilityText(t *testing.T) {
	const day = int64(24 * time.Hour)
	for want, r := range map[string]wire.NodeReliability{
		"ready for 20 of the last 30 days, not lost":                                                                        {ReadyTime: 20 * day},
		"ready for 20 of the last 30 days, not lost, 1 GPU fault; one loss is expected every 25d":                           {ReadyTime: 20 * day, GPUFaults: 1, ExpectedLoss: 25 * day},
		"ready for 20 of the last 30 days, lost 3 times, 2 GPU faults; one loss is expected every 10d (cluster: every 20d)": {ReadyTime: 20 * day, Lost: 3, GPUFaults: 2, ExpectedLoss: 10 * day, TypicalLoss: 20 * day},
	} {
		if got := reliability(&r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestScoreText: a score that is less than 1 is not shown as 1.
func TestScoreText(t *testing.T) {
	for _, c := range []struct {
		x    float64
		verb byte
		want string
	}{{1, 'g', "1"}, {1, 'f', "1.000"}, {0.999994, 'g', "0.999994"}, {0.999994, 'f', "0.999994"}, {0.5, 'g', "0.5"}, {0.7431, 'f', "0.743"}, {0, 'g', "0"}} {
		if got := scoreText(c.x, c.verb); got != c.want {
			t.Errorf("%g is shown as %q, want %q", c.x, got, c.want)
		}
	}
}
