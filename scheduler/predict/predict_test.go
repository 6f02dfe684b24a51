package predict

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestLog(t *testing.T) {
	for x := int64(1); x < 1<<61; x += x/97 + 1 {
		if want := 1024 * math.Log2(float64(x)); math.Abs(float64(Log(x))-want) > 1.2 {
			t.Fatalf("Log(%d) = %d, want %.2f", x, Log(x), want)
		}
		if Log(x) > Log(x+1) {
			t.Fatalf("Log falls at %d", x)
		}
	}
	if Log(0) != 0 || Log(-5) != 0 || Log(2) != Doubling {
		t.Fatalf("Log of small numbers: got %v, %v, %v; want 0, 0, %v", Log(0), Log(-5), Log(2), Doubling)
	}
}

func work(user string, size int64, limit time.Duration) *Work {
	return &Work{User: user, Size: size, Limit: limit}
}

func TestTsafrir(t *testing.T) {
	p := NewTsafrir()
	w := work("u", 1, time.Hour)
	expect := func(when string, want time.Duration) {
		t.Helper()
		if got := p.Predict(w).Expect; got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	expect("at first", time.Hour)
	p.Ended(w, 10*time.Second)
	expect("after one", time.Hour)
	p.Ended(w, 21*time.Second)
	expect("after two", 15*time.Second)
	p.Ended(w, 0)
	p.Ended(w, time.Second)
	expect("never nothing", time.Second)
	p.Ended(w, 9*time.Hour)
	expect("never beyond the limit", time.Hour)
	p.Ended(work("other", 1, time.Hour), time.Second)
	if p.Version("u") == p.Version("other") || p.Version("nobody") != 1 {
		t.Error("versions")
	}
}

func TestSimilar(t *testing.T) {
	p := NewSimilar()
	if e := p.Predict(work("u", 1, 0)); e != (Estimate{}) {
		t.Errorf("knowing nothing it says %v", e)
	}
	if e := p.Predict(work("u", 1, time.Hour)); e.Expect != time.Hour {
		t.Errorf("knowing only the limit it says %v", e)
	}
	for range 5 {
		p.Ended(work("u", 4, time.Hour), 50*time.Second)
		p.Ended(work("u", 8, 2*time.Hour), 90*time.Minute)
	}
	if e := p.Predict(work("u", 4, time.Hour)); e.Expect != 50*time.Second {
		t.Errorf("of work as it ran five times it says %v", e)
	}
	if e := p.Predict(work("u", 8, 2*time.Hour)); e.Expect != 90*time.Minute {
		t.Errorf("of the other work it says %v", e)
	}
	// A user without history: half of others' runs are shorter than requested.
	if e := p.Predict(work("new", 4, 10*time.Hour)); e.Expect <= 0 || e.Expect >= 10*time.Hour {
		t.Errorf("of a new user's work it says %v", e)
	}
	if a, b := p.Predict(work("u", 4, time.Hour)).Cost, p.Predict(work("u", 8, 2*time.Hour)).Cost; a >= b {
		t.Errorf("short work costs %d, long work %d", a, b)
	}
	named := &Work{User: "n", Name: "train", Size: 1, Limit: 10 * time.Hour}
	other := &Work{User: "n", Name: "eval", Size: 1, Limit: 10 * time.Hour}
	for range 6 {
		p.Ended(named, 8*time.Hour)
		p.Ended(other, time.Minute)
	}
	if e := p.Predict(named); e.Expect != 8*time.Hour {
		t.Errorf("the name tells 8 h, it says %v", e)
	}
}

// For every history, an estimate is positive, within the limit, and the same for the same history.
func TestSimilarAlwaysSane(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a, b := NewSimilar(), NewSimilar()
		users := []string{"a", "b", "c", "d"}
		for range 400 {
			w := work(users[rng.IntN(4)], 1+rng.Int64N(100000), time.Duration(rng.Int64N(1e15)))
			if rng.IntN(4) == 0 {
				w.Limit = 0
			}
			if e := a.Predict(w); e != b.Predict(w) || e.Expect < 0 || w.Limit > time.Second && e.Expect > w.Limit || a.all.n > 0 && (e.Expect == 0 || e.Cost <= 0) {
				t.Fatalf("seed %d: of %+v it says %+v", seed, *w, e)
			}
			ran := time.Duration(rng.Int64N(1e15) >> rng.IntN(50))
			a.Ended(w, ran)
			b.Ended(w, ran)
			if a.Turnover() < 0 {
				t.Fatalf("seed %d: turnover %v", seed, a.Turnover())
			}
		}
	}
}

func TestTurnover(t *testing.T) {
	p := NewSimilar()
	for range 2000 {
		p.Ended(work("u", 10, 0), time.Hour)
		p.Ended(work("u", 1, 0), time.Minute)
	}
	// 10 x 60 x 60 + 1 x 1 x 1 over 10 x 60 + 1 x 1 is 59.9 minutes, half of it 29.95.
	if got := p.Turnover(); got < 29*time.Minute || got > 31*time.Minute {
		t.Errorf("turnover %v", got)
	}
}

// A user who was inactive for long is forgotten; one who came back in time is not.
func TestForgetting(t *testing.T) {
	var u users[int]
	*u.at("old") = 1
	*u.at("kept") = 2
	name := func(i int) string { return time.Duration(i).String() }
	for i := range usersMax {
		u.at(name(i))
	}
	u.at("kept")
	for i := range usersMax {
		u.at(name(usersMax + i))
	}
	if u.get("old") != nil {
		t.Error("the old one is remembered")
	}
	if x := u.get("kept"); x == nil || *x != 2 {
		t.Error("the one that came back is forgotten")
	}
	if n := len(u.young) + len(u.old); n > 2*usersMax {
		t.Errorf("%d users are remembered", n)
	}
}

func TestErrors(t *testing.T) {
	var e Errors
	if e.MeanAbsolute() != 0 || e.Relative() != 0 {
		t.Errorf("of nothing: got %v, %v; want 0, 0", e.MeanAbsolute(), e.Relative())
	}
	e.Add(10*time.Second, 20*time.Second)
	e.Add(50*time.Second, 20*time.Second)
	if e.N != 2 || e.Under != 1 || e.MeanAbsolute() != 20*time.Second || e.Relative() != 1000 {
		t.Errorf("%+v %v %d; want e.N = 2, e.Under = 1, e.MeanAbsolute() = %v, e.Relative() = 1000", e, e.MeanAbsolute(), e.Relative(), 20*time.Second)
	}
}
