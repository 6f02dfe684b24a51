package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/structs"
)

// sharedDisk is a storage that the saves of a fleet share.
type sharedDisk struct {
	alone    float64 // bytes per second of a save alone
	together float64 // of all saves at a time
	bytes    float64 // of each checkpoint
	saves    map[structs.AllocID]*diskSave
	at       time.Time
	stalled  time.Duration // in sum, from the turn of each save to its end
	slowest  time.Duration
	most     int // saves at a time
}

type diskSave struct {
	from time.Time
	left float64
}

func newSharedDisk(alone, together float64) *sharedDisk {
	return &sharedDisk{alone: alone, together: together, bytes: 1 << 30, saves: map[structs.AllocID]*diskSave{}}
}

func (f *fleet) diskOf(a *structs.Allocation) *sharedDisk {
	if c := a.Job.Group(a.Group).Checkpoint; c != nil {
		return f.disks[c.Storage]
	}
	return nil
}

// save starts the save of an allocation, or continues it. It returns its last report when it is written.
func (d *sharedDisk) save(a *structs.Allocation, now time.Time) *structs.AllocObserved {
	if now.After(d.at) { // once for all saves
		each := min(d.alone, d.together/float64(max(len(d.saves), 1))) * now.Sub(d.at).Seconds()
		for _, s := range d.saves {
			s.left -= each
		}
		d.at = now
	}
	s := d.saves[a.ID]
	if s == nil {
		s = &diskSave{now, d.bytes}
		d.saves[a.ID] = s
		d.most = max(d.most, len(d.saves))
	}
	if s.left > 0 {
		return nil
	}
	delete(d.saves, a.ID)
	took := now.Sub(s.from)
	d.stalled, d.slowest = d.stalled+took, max(d.slowest, took)
	return &structs.AllocObserved{ID: a.ID, Client: structs.ClientComplete, StartedAt: a.StartedAt, FinishedAt: structs.LogTimeOf(now),
		Saved: &structs.Saved{Time: structs.LogTimeOf(now), Bytes: int64(d.bytes), Took: took}}
}

// TestSavesByBandwidth drains work that writes to a slow and a fast storage, both limited to 16 saves at a time. By measured
// bandwidth the slow one gets as many as it serves, so that work is stopped by saves for less time in sum, and the drain is over no
// later; the fast one keeps its limit. Without measurements, the configured limit holds.
func TestSavesByBandwidth(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	type outcome struct {
		slow, fast sharedDisk
		took       time.Duration
	}
	const limit = 16
	drain := func(measured bool) (out outcome) {
		synctest.Test(t, func(t *testing.T) {
			s := testServer(t, nil)
			f := newFleet(t, one(s), 4)
			f.set(func() {
				f.asks = true
				f.disks = map[string]*sharedDisk{"slow": newSharedDisk(200<<20, 500<<20), "fast": newSharedDisk(200<<20, 8000<<20)}
			})
			limitSaving(t, s, 0, map[string]int64{"slow": limit, "fast": limit})
			for _, job := range []string{"slow", "fast"} {
				j := saver(job, 60, job)
				j.Groups[0].Checkpoint.Grace = time.Minute // as long as the slow one needs for all
				register(t, s, j)
			}
			waitFor(t, time.Minute, "work", func() bool { return running(s, "slow") == 60 && running(s, "fast") == 60 })
			if measured { // each saves alone now and then
				for _, job := range []string{"slow", "fast"} {
					a := live(s, job)[0]
					d := f.disks[job]
					mustApply(t, s, &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: structs.ClientRunning, StartedAt: a.StartedAt,
						Saved: &structs.Saved{Time: a.StartedAt.Add(time.Second), Bytes: int64(d.bytes), Took: time.Duration(d.bytes / d.alone * float64(time.Second))}}}})
				}
			} else {
				f.set(func() { f.untimed = true })
			}
			begun := time.Now()
			for _, n := range f.nodes {
				startDrain(t, s, n.ID, &structs.DrainStrategy{Deadline: 10 * time.Minute})
			}
			shown := false
			waitFor(t, 30*time.Minute, "the work to end", func() bool {
				for _, x := range checkpoint.NewLine(s.Published().Snapshot).Storages() {
					if x.Limit > limit || x.Limit < 1 || !measured && (x.Limit != limit || x.Saves != 0) {
						t.Fatalf("%+v", x)
					}
					shown = shown || x.Waits > 0
				}
				left := 0
				for _, n := range f.nodes {
					left += len(holdsOn(s, n.ID))
				}
				return left == 0
			})
			if !shown {
				t.Error("no work is shown to wait")
			}
			f.set(func() { out = outcome{*f.disks["slow"], *f.disks["fast"], time.Since(begun)} })
			resp := call(t, s, methods.SchedulerConfigGet, rpc.Header{}, &methods.EmptyRequest{})
			if len(resp.Storages) != 2 || resp.Storages[1].Name != "slow" || measured && (resp.Storages[1].Limit < 3 || resp.Storages[1].Limit > 5) {
				t.Errorf("shown: %+v", resp.Storages)
			}
		})
		return out
	}
	fixed, by := drain(false), drain(true)
	t.Logf("slow storage, by fixed slots: %v in sum, %v the slowest, %d at a time; by bandwidth: %v, %v, %d", fixed.slow.stalled, fixed.slow.slowest, fixed.slow.most, by.slow.stalled, by.slow.slowest, by.slow.most)
	t.Logf("fast storage, by fixed slots: %v in sum, %v the slowest, %d at a time; by bandwidth: %v, %v, %d", fixed.fast.stalled, fixed.fast.slowest, fixed.fast.most, by.fast.stalled, by.fast.slowest, by.fast.most)
	t.Logf("all have left after %v and %v", fixed.took, by.took)
	if fixed.slow.most > limit || by.slow.most > limit || fixed.fast.most > limit || by.fast.most > limit {
		t.Errorf("more saves at a time than %d", limit)
	}
	if alone := time.Duration(by.slow.bytes / by.slow.alone * float64(time.Second)); by.slow.slowest > alone*5/2 {
		t.Errorf("a save takes up to %v, alone it takes %v", by.slow.slowest, alone)
	}
	if by.took > fixed.took {
		t.Errorf("the drain takes %v, with fixed slots %v", by.took, fixed.took)
	}
	if 2*by.slow.stalled > fixed.slow.stalled {
		t.Errorf("work is stopped for %v in sum, with fixed slots for %v", by.slow.stalled, fixed.slow.stalled)
	}
	if by.fast.stalled > fixed.fast.stalled*11/10 {
		t.Errorf("on the fast storage work is stopped for %v in sum, with fixed slots for %v", by.fast.stalled, fixed.fast.stalled)
	}
	if fixed.slow.most != limit || fixed.fast.most != limit || by.fast.most != limit {
		t.Errorf("at a time: %d and %d with fixed slots, %d on the fast storage by bandwidth; want %d", fixed.slow.most, fixed.fast.most, by.fast.most, limit)
	}
}

// TestSavesByBandwidthUnconfigured: without any setting, no save waits while nothing was measured, nor where saves were
// as fast as alone; where they were slow because of others, the next ones take turns.
func TestSavesByBandwidthUnconfigured(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	const work = 40
	drain := func(measured bool) (slow, fast sharedDisk) {
		synctest.Test(t, func(t *testing.T) {
			s := testServer(t, nil)
			f := newFleet(t, one(s), 4)
			f.set(func() {
				f.asks = true
				f.disks = map[string]*sharedDisk{"slow": newSharedDisk(200<<20, 500<<20), "fast": newSharedDisk(200<<20, 100*200<<20)}
			})
			for job := range f.disks {
				j := saver(job, work, job)
				j.Groups[0].Checkpoint.Grace = 3 * time.Minute
				register(t, s, j)
			}
			waitFor(t, time.Minute, "work", func() bool { return running(s, "slow") == work && running(s, "fast") == work })
			if measured { // all but one have saved together
				for job, d := range f.disks {
					for i, a := range live(s, job) {
						at, took := a.StartedAt.Add(3*time.Minute), d.bytes/min(d.alone, d.together/(work-1))
						if i == 0 {
							at, took = a.StartedAt.Add(time.Minute), d.bytes/d.alone
						}
						mustApply(t, s, &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: structs.ClientRunning, StartedAt: a.StartedAt,
							Saved: &structs.Saved{Time: at, Bytes: int64(d.bytes), Took: time.Duration(took * float64(time.Second))}}}})
					}
				}
				time.Sleep(4 * time.Minute)
				resp := call(t, s, methods.SchedulerConfigGet, rpc.Header{}, &methods.EmptyRequest{})
				if len(resp.Storages) != 2 || resp.Storages[0].Limit != 0 || resp.Storages[1].Limit != 3 || resp.Storages[1].Saves != work || resp.Storages[1].Most != 0 {
					t.Errorf("shown: %+v", resp.Storages)
				}
			}
			for _, n := range f.nodes {
				startDrain(t, s, n.ID, &structs.DrainStrategy{Deadline: time.Hour})
			}
			waitFor(t, 90*time.Minute, "the work to end", func() bool {
				left := 0
				for _, n := range f.nodes {
					left += len(holdsOn(s, n.ID))
				}
				return left == 0
			})
			f.set(func() { slow, fast = *f.disks["slow"], *f.disks["fast"] })
		})
		return slow, fast
	}
	before, _ := drain(false)
	slow, fast := drain(true)
	t.Logf("slow storage: %v in sum, %v the slowest, %d at a time before; %v, %v, %d by what was measured; fast: %d at a time", before.stalled, before.slowest, before.most, slow.stalled, slow.slowest, slow.most, fast.most)
	if before.most <= 3 || slow.most > 3 || fast.most <= 3 {
		t.Errorf("saves at a time: %d before, %d on the slow storage, %d on the fast one", before.most, slow.most, fast.most)
	}
	if 2*slow.stalled > before.stalled {
		t.Errorf("work is stopped for %v in sum, without turns for %v", slow.stalled, before.stalled)
	}
}
