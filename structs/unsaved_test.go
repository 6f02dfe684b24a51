package structs

import (
	"testing"
	"time"
)

// TestUnsaved: what an allocation loses counts its GPUs from its newest checkpoint, or from its start, and no time in which
// it was suspended.
func TestUnsaved(t *testing.T) {
	start := LogTimeOf(time.Unix(1_000_000, 0))
	at := func(minutes int) LogTime { return start.Add(time.Duration(minutes) * time.Minute) }
	now := at(60)
	for name, c := range map[string]struct {
		a    Allocation
		want int64
	}{
		"since its start":             {Allocation{}, 2 * 3600},
		"since its checkpoint":        {Allocation{Saved: &Saved{Time: at(50)}}, 2 * 600},
		"suspended half an hour ago":  {Allocation{Suspension: &Suspension{Since: at(30)}}, 2 * 1800},
		"suspended after it saved":    {Allocation{Saved: &Saved{Time: at(20)}, Suspension: &Suspension{Since: at(30)}}, 2 * 600},
		"suspended for most of it":    {Allocation{Suspension: &Suspension{Total: 50 * time.Minute}}, 2 * 600},
		"resumed since it saved":      {Allocation{Saved: &Saved{Time: at(5)}, Suspension: &Suspension{Total: 40 * time.Minute}}, 2 * 1200},
		"its checkpoint is from then": {Allocation{Saved: &Saved{Time: at(61)}}, 0},
		"it has ended":                {Allocation{Client: ClientComplete}, 0},
	} {
		a := c.a
		a.StartedAt = start
		for i := range 2 {
			a.Grants = append(a.Grants, Grant{Device: "nvidia/gpu/H100", Instance: string('a' + rune(i))})
		}
		if got := a.Unsaved(a.Saved, now); got != c.want {
			t.Errorf("%s: %d GPU seconds, want %d", name, got, c.want)
		}
	}
	if got := (&Allocation{}).Unsaved(nil, now); got != 0 {
		t.Errorf("one that has not started loses %d GPU seconds", got)
	}
}
