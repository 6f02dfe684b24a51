//go:build e2e

package history

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/muster-sched/muster/e2e/harness"
)

// fixed are the seeds that run by default, before one that is drawn. Together they have every fault and every protection.
var fixed = []uint64{0, 1, 2}

// TestHistory plays schedules of faults. SEED plays one schedule, ROUNDS so many that begin at SEED or at a drawn seed, and
// DURATION as many as fit into that time.
func TestHistory(t *testing.T) {
	until := time.Time{}
	rounds := harness.Number(t, "ROUNDS", 0)
	if d := harness.Period(t, "DURATION", 0); d > 0 {
		until, rounds = time.Now().Add(d), 1<<30
	}
	seed := rand.Uint64N(1 << 32)
	seeds := append(fixed, seed)
	if s := os.Getenv("SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("SEED=%q; want a number", s)
		}
	}
	if rounds > 0 || os.Getenv("SEED") != "" {
		seeds = []uint64{seed}
	}
	for i := 0; i < max(rounds, len(seeds)) && !t.Failed() && (until.IsZero() || time.Now().Before(until)); i++ {
		s := seed + uint64(i)
		if i < len(seeds) {
			s = seeds[i]
		}
		t.Run(fmt.Sprint("seed=", s), func(t *testing.T) { round(t, s) })
	}
}

func round(tb testing.TB, seed uint64) {
	t := &summary{TB: tb, seed: seed, stage: "the cluster starts"}
	tb.Cleanup(t.publish)
	c := newCluster(t, seed)
	c.work()
	if err := c.api.Call("PUT", "/v1/jobs", dict{"Job": template(parent, "v")}, nil); err != nil {
		t.Fatal(err)
	}
	h := newHistory(c)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { h.client(i, seed).run(stop) })
	}
	for i := range dispatchers {
		wg.Go(func() { h.client(clients+i, seed).dispatch(stop) })
	}
	t.at("the faults are played")
	c.play(schedule(seed))
	time.Sleep(time.Second)
	close(stop)
	wg.Wait()
	t.at("the servers agree again")
	c.settled()
	t.at("every key is read once more")
	h.client(clients+dispatchers, seed).last()
	t.at("the services run again")
	c.allRun()
	t.at("the history is judged")
	for _, host := range c.net.Hosts {
		c.examine(host.Name)
	}
	h.judge(seed)
}

// judge checks the history and saves it if it is wrong.
func (h *history) judge(seed uint64) {
	t := h.c.t
	count := map[harness.Outcome]int{}
	for i := range h.ops {
		count[h.ops[i].Outcome]++
	}
	var children []struct{ ID string }
	harness.Eventually(t, 30*time.Second, "the list of children", func() (bool, string) {
		err := h.c.api.Call("GET", "/v1/jobs?prefix="+parent+"/", nil, &children)
		return err == nil, fmt.Sprint(err)
	})
	var ids []string
	for _, j := range children {
		ids = append(ids, j.ID)
	}
	began := time.Now()
	dir := ""
	save := func(info *porcupine.LinearizationInfo) {
		if dir == "" {
			dir = h.save(seed)
		}
		if info != nil {
			pictures, _ := filepath.Glob(filepath.Join(dir, "*.html"))
			if err := porcupine.VisualizePath(model, *info, filepath.Join(dir, fmt.Sprintf("%d.html", len(pictures)))); err != nil {
				t.Log(err)
			}
		}
	}
	problems := check(h.ops, func(info porcupine.LinearizationInfo) { save(&info) })
	problems = append(problems, checkDispatches(h.dispatches, ids)...)
	for i, p := range problems {
		if i == 20 {
			t.Errorf("and %d more", len(problems)-i)
			break
		}
		t.Error(p)
	}
	if len(problems) > 0 {
		save(nil)
		t.Logf("the history and pictures of it are in %s", dir)
	}
	t.Logf("seed %d, %s: %d operations (%d done, %d refused, %d not done, %d of unknown outcome) and %d dispatches with %d children, checked in %s",
		seed, h.c.guard, len(h.ops), count[harness.Done], count[harness.Refused], count[harness.NotDone], count[harness.Unknown], len(h.dispatches), len(ids), time.Since(began).Round(time.Millisecond))
	if len(h.denied) > 0 {
		t.Logf("requests with a valid token were denied: %v", h.denied)
	}
	if count[harness.Done] < 200 {
		t.Errorf("only %d operations were done, too few to conclude anything", count[harness.Done])
	}
}

// save writes the history to a directory that stays.
func (h *history) save(seed uint64) string {
	dir := filepath.Join(os.Getenv("MUSTER_E2E_LOGS"), fmt.Sprintf("history-%d", seed))
	if os.Getenv("MUSTER_E2E_LOGS") == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("muster-history-%d", seed))
	}
	b, err := json.MarshalIndent(dict{"Seed": seed, "Schedule": schedule(seed), "Operations": h.ops, "Dispatches": h.dispatches}, "", " ")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "history.json"), b, 0o644)
	}
	if err != nil {
		h.c.t.Log(err)
	}
	return dir
}
