package cron

import (
	"strings"
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 10, 24, 23, 59, 0, 0, berlin)
	for _, c := range []struct {
		specs []string
		want  string // "" is none
	}{
		{[]string{"0 3 * * *"}, "2026-10-25T03:00:00+01:00"}, // clocks went back
		{[]string{"0 12 * * *", "*/15 * * * *"}, "2026-10-25T00:00:00+02:00"},
		{[]string{"0 0 1 1 * 2020"}, ""},
		{nil, ""},
	} {
		at, err := Next(c.specs, now)
		got := ""
		if !at.IsZero() {
			got = at.Format(time.RFC3339)
		}
		if err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.specs, got, err, c.want)
		}
	}
}

// FuzzCheck: no expression panics, and one that is read has a next time or none.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{"*/15 * * * *", "@daily", "0 0 31 2 *", "* * * * * * *", "0 0 * * 5#6", "-1 * * * *", "every day", "0/0 * * * *", strings.Repeat("1,", 120) + "1 * * * *"} {
		f.Add(s)
	}
	now := time.Date(2026, 2, 28, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		err := Check(s)
		at, nerr := Next([]string{s}, now)
		if err != nil && nerr == nil || err == nil && !at.IsZero() && !at.After(now) {
			t.Errorf("%q: %v; next %s, %v", s, err, at, nerr)
		}
	})
}
