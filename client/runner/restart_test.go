package runner

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestRestartPolicy: each field of a restart policy changes what becomes of a task that has failed for the third time.
func TestRestartPolicy(t *testing.T) {
	at := structs.LogTimeOf(time.Unix(1_000_000, 0))
	recent := []structs.LogTime{at.Add(-40 * time.Minute), at.Add(-10 * time.Minute)}
	verdictOf := func(p structs.Restart) string {
		v := decide(p, recent, at, false, false, false, 0)
		return fmt.Sprintf("again %t, after %s", v.again, v.delay)
	}
	base := structs.Restart{Attempts: 3, Interval: time.Hour, Delay: time.Second, Mode: "fail"}
	spent := structs.Restart{Attempts: 2, Interval: time.Hour, Delay: time.Second, Mode: "fail"}
	for _, c := range []struct {
		name string
		from structs.Restart
		set  func(p *structs.Restart)
		want [2]string
	}{
		{"Restart.Attempts", base, func(p *structs.Restart) { p.Attempts = 2 }, [2]string{"again true, after 1s", "again false, after 0s"}},
		{"Restart.Interval", spent, func(p *structs.Restart) { p.Interval = 30 * time.Minute }, [2]string{"again false, after 0s", "again true, after 1s"}},
		{"Restart.Delay", base, func(p *structs.Restart) { p.Delay = time.Minute }, [2]string{"again true, after 1s", "again true, after 1m0s"}},
		{"Restart.Mode", spent, func(p *structs.Restart) { p.Mode = "delay" }, [2]string{"again false, after 0s", "again true, after 20m0s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.from
			before := verdictOf(p)
			c.set(&p)
			if got := [2]string{before, verdictOf(p)}; got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
