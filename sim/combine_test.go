package sim

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/muster-sched/muster/internal/histories"
)

// combinations is how many histories run by default.
const combinations = 1200

// TestCombinations: every order with every backfill and every preemption rule, on random clusters, queues, jobs and
// failures: see checks. MUSTER_COMBINATIONS sets how many histories, MUSTER_COMBINATIONS_SEED the first; alone, it repeats
// one and logs its passes.
func TestCombinations(t *testing.T) {
	n, first := uint64(combinations), uint64(1)
	if testing.Short() {
		n = 150
	}
	if s := os.Getenv("MUSTER_COMBINATIONS_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("MUSTER_COMBINATIONS_SEED=%q: want a number", s)
		}
		first, n = v, 1
	}
	if s := os.Getenv("MUSTER_COMBINATIONS"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil || v == 0 {
			t.Fatalf("MUSTER_COMBINATIONS=%q: want a positive number", s)
		}
		n = v
	}
	var next, failed atomic.Uint64
	next.Store(first)
	var mu sync.Mutex
	cover, counts := coverage{}, map[string]int{}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < first+n && failed.Load() < 5; seed = next.Add(1) - 1 {
				h := newHistory(t, seed)
				if n == 1 {
					h.checks.trace = t.Logf
				}
				err := h.run(t.Context())
				mu.Lock()
				if err != nil {
					failed.Add(1)
					t.Errorf("MUSTER_COMBINATIONS_SEED=%d: %v\n%v", seed, err, h)
				}
				cover.add(h.is)
				for k, v := range h.checks.Counts {
					counts[k] += v
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d histories from seed %d; %v", cover.histories, first, text(counts))
	if failed.Load() == 0 && n >= combinations {
		cover.check(t)
		for _, k := range append(mustOccur, mustSave...) {
			if counts[k] == 0 {
				t.Errorf("nothing was counted under %q: that check has no case", k)
			}
		}
	}
}

// mustOccur are counts that no run of this many histories lacks.
var mustOccur = []string{"drains ended", "drains with work at their deadline", "moved by a drain", "gangs moved by a drain", "stopped at the deadline of a drain",
	"gangs stopped at the deadline of a drain"}

// mended are the seeds of histories that once failed, with what was wrong.
var mended = []struct {
	seed uint64
	with map[string]string // values of the options that came later
	was  string
}{
	{352, before, "a CPU job that fitted exactly was left waiting, because its request was rounded up to units"},
	{727, before, "preemptible work with more allocations than there was room for was never decided again"},
	{1145, before, "the same, with the whole cluster free"},
	{1343, before, "work that took the places of others exceeded the limit of its queue"},
	{4344, before, "running work was counted on the first node with room instead of its own, so that a free GPU was not seen"},
	{3958, before, "victims that were taken together left their queue with less than it is guaranteed"},
	{21562, plainer, "victims that were taken together left a gang without its minimum, and the group that runs as one with it went on"},
	{21312, plainer, "the same, by a guarantee"},
	{1001121, plainer, "the priority of a victim counted again for a second job of the pass, to whose gain it makes no difference"},
	{1008720, plainer, "the group without GPUs of an all_at_once job counted as if it needed as many as the other one, so that the job had no place in its contest"},
	{452, map[string]string{"order": "priority,fair", "backfill": "none", "preempt": "order", "queues": "soft limit", "times": "exact", "failures": "no", "waiting": "whole", "also": "nothing", "groups": "one"},
		"an elastic gang came into the plan after a job that counted on what it had preempted, so that the victim was told of that job, and that nothing is lost"},
	{3324, map[string]string{"storage": "two at a time"}, "an all_at_once job was preempted too soon, because one of its groups had started long before the other"},
}

// before are the values without which histories were drawn at first.
var before = map[string]string{"models": "one", "groups": "one", "levels": "none", "arrivals": "spread", "parts of a checkpoint": "all", "preempt_min_runtime": "default", "members": "whole GPUs", "also": "nothing"}

// plainer are the values without which they were drawn until members had shares.
var plainer = map[string]string{"members": "whole GPUs", "also": "nothing"}

// TestMendedCombinations repeats them.
func TestMendedCombinations(t *testing.T) {
	for _, m := range mended {
		if err := newHistoryWith(t, m.seed, m.with).run(t.Context()); err != nil {
			t.Errorf("MUSTER_COMBINATIONS_SEED=%d: %v; once, %s", m.seed, err, m.was)
		}
	}
}

func text(counts map[string]int) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%s %d, ", k, counts[k])
	}
	return strings.TrimSuffix(b.String(), ", ")
}

// covered are the options whose values the histories have to cover.
var covered = append(slices.Clip(histories.Options), operated...)

// coverage counts the histories with each value and each pair of values of two options.
type coverage struct {
	histories int
	of        map[string]int
}

func (c *coverage) add(is map[string]string) {
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.histories++
	for i, a := range covered {
		c.of[a.Name+"="+is[a.Name]]++
		for _, b := range covered[:i] {
			c.of[b.Name+"="+is[b.Name]+" "+a.Name+"="+is[a.Name]]++
		}
	}
}

// check fails for a value or a pair of values that no history had.
func (c *coverage) check(t *testing.T) {
	pairs, least, missing := 0, c.histories, 0
	for i, a := range covered {
		for _, v := range a.Values {
			t.Logf("%s=%s: %d", a.Name, v, c.of[a.Name+"="+v])
			for _, b := range covered[:i] {
				for _, w := range b.Values {
					pair := b.Name + "=" + w + " " + a.Name + "=" + v
					pairs++
					least = min(least, c.of[pair])
					if c.of[pair] == 0 {
						missing++
						t.Errorf("no history has %s", pair)
					}
				}
			}
		}
	}
	t.Logf("%d pairs of values, each in at least %d histories; %d are missing", pairs, least, missing)
}
