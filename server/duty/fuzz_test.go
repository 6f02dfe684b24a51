package duty

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// FuzzLaunch asks for the next launch of any expression in any zone: it comes after now, or never.
func FuzzLaunch(f *testing.F) {
	for _, s := range []string{"*/15 * * * *", "@hourly", "0 0 29 2 *", "0 0 31 2 *", "30 2 * * * *", "0 0 * * 1#5", "0 0 LW * *", "0-59/0 * * * *", "60 * * * *"} {
		f.Add(s, "Europe/Berlin", int64(1_700_000_000))
	}
	f.Add("0 2 30 3 * 2098", "Asia/Kathmandu", int64(4_000_000_000))
	f.Fuzz(func(t *testing.T, spec, zone string, at int64) {
		if len(spec) > 256 || at < 0 || at > 1<<33 {
			return
		}
		now := time.Unix(at, 0)
		next, err := NextLaunch(&structs.Periodic{Enabled: true, Specs: []string{spec}, TimeZone: zone}, now)
		if err == nil && !next.IsZero() && !next.After(now) {
			t.Fatalf("%q in %q: after %v comes %v", spec, zone, now, next)
		}
	})
}
