package structs

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestDecay(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		v := rng.Int64N(1 << rng.IntN(50))
		half := time.Duration(1 + rng.Int64N(int64(time.Second)<<rng.IntN(24)))
		dt := time.Duration(rng.Int64N(1 << (1 + rng.IntN(55))))
		want := float64(v) * math.Exp2(-float64(dt)/float64(half))
		if got := Decay(v, dt, half); math.Abs(float64(got)-want) > 1+1e-9*want {
			t.Fatalf("%d after %v of half-life %v: %d, want %.3f", v, dt, half, got, want)
		}
		u := QueueUsage{Held: Amount{GPUMilli: rng.Int64N(1_000_000)}, Used: Amount{GPUMilli: v}, At: 5}
		gain := float64(u.Held.GPUMilli) * half.Seconds() / math.Ln2 * -math.Expm1(-float64(dt)/float64(half)*math.Ln2)
		if got := u.UsedAt(u.At.Add(dt), half).GPUMilli; math.Abs(float64(got)-want-gain) > 2+1e-6*(want+gain) {
			t.Fatalf("%d + %d/s after %v of half-life %v: %d, want %.3f", v, u.Held.GPUMilli, dt, half, got, want+gain)
		}
		total := float64(u.Held.GPUMilli) * dt.Seconds()
		if got := u.TotalAt(u.At.Add(dt)).GPUMilli; math.Abs(float64(got)-total) > 1+1e-9*total {
			t.Fatalf("total %d, want %.3f", got, total)
		}
	}
}

// TestSettleOften: looking often gives what looking once gives.
func TestSettleOften(t *testing.T) {
	once := QueueUsage{Held: Amount{GPUMilli: 8000, CPU: 3}, Used: Amount{GPUMilli: 1e9}}
	often := once
	const half = 10 * time.Minute
	for i := range 3600 {
		often.Settle(LogTime(i+1)*LogTime(time.Second), half, "")
	}
	once.Settle(LogTime(time.Hour), half, "")
	if d := once.Used.GPUMilli - often.Used.GPUMilli; d < -4000 || d > 4000 || once.Total != often.Total {
		t.Errorf("once %+v, often %+v", once, often)
	}
	if m := once.MeanAt(once.At.Add(100*half), half); m.GPUMilli < 7995 || m.GPUMilli > 8000 {
		t.Errorf("the mean of holding 8000 for ever is %d", m.GPUMilli)
	}
}
