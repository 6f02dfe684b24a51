package structs

import (
	"testing"
	"time"
)

func TestPeriodOf(t *testing.T) {
	at := func(s string) LogTime {
		x, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return LogTime(x.UnixNano())
	}
	for _, c := range []struct{ period, at, from, to string }{
		{PeriodDay, "2026-02-28T23:59:59Z", "2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z"},
		{PeriodWeek, "2026-11-26T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}, // a Thursday
		{PeriodWeek, "2026-11-29T23:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}, // a Sunday
		{PeriodWeek, "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"},
		{PeriodMonth, "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{PeriodMonth, "2028-02-29T01:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
	} {
		from, to := PeriodOf(at(c.at), c.period)
		if from != at(c.from) || to != at(c.to) {
			t.Errorf("%s of %s: %s to %s, want %s to %s", c.period, c.at, from.Time(), to.Time(), c.from, c.to)
		}
	}
}

// TestPeriodUse: GPU hours count from zero in each period, however rarely the row is settled, and reading it at any time
// gives what settling it then would.
func TestPeriodUse(t *testing.T) {
	day := func(d float64) LogTime { return LogTime(d * 24 * float64(time.Hour)) } // of 1970, which begins with a day, a week of which is past, and a month
	hold := func(u *QueueUsage, at LogTime, gpus int64) {
		u.Settle(at, time.Hour, PeriodDay)
		u.Held.GPUMilli = 1000 * gpus
	}
	hours := func(u *QueueUsage, at LogTime) float64 { return float64(u.PeriodUse(at, PeriodDay)) / gpuHour }
	u := &QueueUsage{At: day(10.5)}
	hold(u, day(10.5), 2)
	if got := hours(u, day(10.75)); got != 12 {
		t.Errorf("two GPUs for a quarter of a day: %v", got)
	}
	if got := hours(u, day(11)); got != 0 {
		t.Errorf("at the beginning of a day: %v", got)
	}
	if got := hours(u, day(13.25)); got != 12 {
		t.Errorf("read days later, it counts from midnight: %v, want 12", got)
	}
	hold(u, day(13.25), 1)
	if got := hours(u, day(13.5)); got != 18 {
		t.Errorf("12 before the change and 6 since: %v", got)
	}
	hold(u, day(14.5), 0)
	if got := hours(u, day(14.75)); got != 12 {
		t.Errorf("one GPU until noon: %v, want 12", got)
	}
	if got := hours(u, day(15)); got != 0 || u.PeriodUse(day(14.75), "") != 0 {
		t.Errorf("nothing is held on the next day: %v", got)
	}
	late := &QueueUsage{At: day(2), Held: Amount{GPUMilli: 1000}}
	late.Settle(day(2.5), time.Hour, PeriodDay) // the budget is new
	if got := hours(late, day(2.75)); got != 6 {
		t.Errorf("a budget counts from when it is set: %v, want 6", got)
	}
	if often := *u; true { // settled each hour or once: the same
		once := often
		for h := 1; h <= 60; h++ {
			often.Settle(day(14.75)+LogTime(h)*LogTime(time.Hour), time.Hour, PeriodDay)
		}
		once.Settle(day(14.75)+60*LogTime(time.Hour), time.Hour, PeriodDay)
		if often.PeriodBase != once.PeriodBase || often.PeriodAt != once.PeriodAt {
			t.Errorf("settled often %+v, once %+v", often, once)
		}
	}
}
