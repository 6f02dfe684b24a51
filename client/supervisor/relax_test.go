package supervisor

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Every thread may wake late, those that the runtime made before anything of ours ran among them.
func TestRelax(t *testing.T) {
	t.Cleanup(func() { Relax(taskTimerSlack) })
	for _, slack := range []time.Duration{TaskSlack, ServerSlack} {
		Relax(slack)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, th := range threads {
			b, err := os.ReadFile("/proc/" + th.Name() + "/timerslack_ns")
			if err != nil {
				continue // it has ended
			}
			seen++
			if got := strings.TrimSpace(string(b)); got != strconv.FormatInt(slack.Nanoseconds(), 10) {
				t.Errorf("thread %s may wake %s ns late, want %s", th.Name(), got, slack)
			}
		}
		if seen < 2 {
			t.Errorf("%d threads were seen", seen)
		}
	}
}
