package checkpoint

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// A storage serves some number of saves at a time as fast as a single one. Beyond it they share its bandwidth: each takes
// longer, while its task waits, and all of them are done no sooner. Where that number lies is measured.
//
// Agents report how long a save took from the notice until it was written, and its size (structs.Saved). From these times
// follows how many saves ran with it. Saves that ran among about as many others make a level:
//
//	level   saves at a time   MiB/s of each   MiB/s together
//	0       1                 1000            1000
//	6       8                 640             5100           saturated: each is slower than at level 0
//	8       16                318             5090
//
// The rate of the lowest level is taken for the rate of a save alone, the most of the last column for the bandwidth of the
// storage. Here it serves 5.1 saves as fast as one, and 6 are admitted: each takes at most twice as long as alone. If the
// highest level is about as fast as the lowest (saturatedPercent), it is not known how much more the storage serves, and twice as many are
// admitted as at that level: each takes at most 2.5 times as long as alone. If even the lowest may be saturated, half as many are, so that the rate of fewer is learned. The
// configured number is the most in any case, and in force while nothing is measured.
//
// A storage that jobs name but that is not configured has no limit until saves were measured that were slow because of
// others, or of which this is not known. While its highest level is as fast as the lowest, no save waits.
//
// The estimate is a function of the saves in the state, as the line is. The newest of each level count, so that a level that
// is seldom seen, as that of a save alone, is not forgotten for the many saves of another.

// Bounds of what counts as a measurement.
const (
	measuredMost  = 4096                   // newest saves of a storage that are looked at
	measuredLevel = 64                     // newest saves of a level that count
	measuredAge   = 7 * 24 * time.Hour     // older saves than this, from the newest, do not count
	measuredBytes = 1 << 20                // smaller checkpoints say nothing of bandwidth
	measuredLarge = 1 << 46                // nor do larger ones, which no allocation writes
	measuredTook  = 100 * time.Millisecond // nor do saves that took less: times of files are not exact
	aloneMilli    = 1500                   // thousandths of saves at a time, below which a save counts as alone
	// saturatedPercent is the share of the rate alone below which saves have filled the storage.
	saturatedPercent = 80
)

// measuredSave is a save whose size and time are known.
type measuredSave struct {
	from, to structs.LogTime
	bytes    int64
	id       structs.AllocID
}

// Storage is what is known of a storage that limits saves.
type Storage struct {
	Name         string
	Most         int64 // configured; 0: not
	Limit        int64 // in force: at most Most; 0: none
	Saves        int64 // that were measured
	Alone        int64 // bytes per second of a save alone; 0: nothing is measured
	Together     int64 // bytes per second of all saves at a time, the most that was seen
	Turns, Waits int64 // allocations that have their turn, and that wait for it
}

// measures collects measured saves by storage.
type measures map[string][]measuredSave

// measure returns what is known of the storages that are configured or were measured.
func measure(snap Cluster) map[string]Storage {
	m, out := measures{}, map[string]Storage{}
	for j := range snap.Jobs("", "") { // most have none, and their allocations need not be looked at
		if slices.ContainsFunc(j.Groups, func(g *structs.Group) bool { return g.Checkpoint != nil && g.Checkpoint.Storage != "" }) {
			for _, a := range snap.AllocsByJob(j.Key()) {
				m.add(a)
			}
		}
	}
	most := snap.SchedulerConfig().CheckpointStorage
	for name := range m {
		out[name] = m.storage(name, most[name])
	}
	for name, n := range most {
		if _, seen := out[name]; !seen {
			out[name] = m.storage(name, n)
		}
	}
	return out
}

// add adds the newest save of an allocation, if it is a measurement of a storage.
func (m measures) add(a *structs.Allocation) {
	s := a.Saved
	if s == nil || s.Took < measuredTook || s.Bytes < measuredBytes || s.Bytes > measuredLarge || a.Job == nil {
		return
	}
	if g := a.Job.Group(a.Group); g != nil && g.Checkpoint != nil && s.Took <= g.Checkpoint.GraceOrDefault() && g.Checkpoint.Storage != "" {
		m[g.Checkpoint.Storage] = append(m[g.Checkpoint.Storage], measuredSave{s.Time.Add(-s.Took), s.Time, s.Bytes, a.ID})
	}
}

// storage returns the estimate of a storage.
func (m measures) storage(name string, most int64) Storage {
	saves := m[name]
	slices.SortFunc(saves, func(a, b measuredSave) int {
		return cmp.Or(cmp.Compare(b.to, a.to), slices.Compare(a.id[:], b.id[:]))
	})
	saves = saves[:min(len(saves), measuredMost)]
	if old := slices.IndexFunc(saves, func(s measuredSave) bool { return saves[0].to.Sub(s.to) > measuredAge }); old >= 0 {
		saves = saves[:old]
	}
	out := Storage{Name: name, Most: most, Limit: most, Saves: int64(len(saves))}
	levels := levelsOf(saves)
	if len(levels) == 0 {
		return out
	}
	low, high := levels[0], levels[len(levels)-1]
	out.Alone = low.rate()
	for _, l := range levels {
		out.Together = max(out.Together, l.amongMilli()*(l.rate()/1000))
	}
	serves := out.Together / max(out.Alone/1000, 1) // thousandths of saves at the rate of the lowest level
	known := low.amongMilli() < aloneMilli || serves*saturatedPercent >= low.amongMilli()*100
	switch {
	case !known:
		out.Limit = (low.amongMilli() + 1999) / 2000
	case high.rate()*100 < out.Alone*saturatedPercent:
		out.Limit = serves/1000 + 1
	case most == 0:
		return out
	default:
		out.Limit = 2 * ((high.amongMilli() + 999) / 1000)
	}
	if out.Limit = max(out.Limit, 1); most > 0 {
		out.Limit = min(out.Limit, most)
	}
	return out
}

// level sums saves that ran among about as many others.
type level struct {
	at     int
	saves  int
	bytes  int64
	took   int64 // milliseconds
	shared int64 // milliseconds of all saves meanwhile, with these
}

// rate returns bytes per second.
func (l *level) rate() int64 { return max(1, 1000*l.bytes/l.took) }

// amongMilli returns the mean number of saves at a time, in thousandths.
func (l *level) amongMilli() int64 { return 1000 * l.shared / l.took }

// levelOf returns the level of a number of saves at a time, in thousandths: two for each power of two. A number that is a little
// less than the least of a level, because saves do not begin and end at one instant, belongs to it.
func levelOf(milli int64) int {
	milli = max(1000, milli*17/16)
	n := bits.Len64(uint64(milli/1000)) - 1
	if 2*milli >= 3*1000<<n {
		return 2*n + 1
	}
	return 2 * n
}

// levelsOf returns the levels of saves, which come newest first, the lowest first.
func levelsOf(saves []measuredSave) (out []level) {
	c := newConcurrency(saves)
	for i := range saves {
		s := &saves[i]
		took, shared := s.to.Sub(s.from).Milliseconds(), (c.over(s.to) - c.over(s.from)).Milliseconds()
		at := levelOf(1000 * shared / took)
		k, found := slices.BinarySearchFunc(out, at, func(l level, at int) int { return cmp.Compare(l.at, at) })
		if !found {
			out = slices.Insert(out, k, level{at: at})
		}
		if out[k].saves++; out[k].saves <= measuredLevel {
			out[k].bytes += s.bytes
			out[k].took += took
			out[k].shared += shared
		}
	}
	return out
}

// concurrency is how many saves ran at a time, as steps.
type concurrency []step

// step begins at a time.
type step struct {
	at     structs.LogTime
	saves  time.Duration // that run from then on, as a factor
	before time.Duration // of all saves until then, in sum
}

func newConcurrency(saves []measuredSave) concurrency {
	out := make(concurrency, 0, 2*len(saves))
	for i := range saves {
		out = append(out, step{at: saves[i].from, saves: 1}, step{at: saves[i].to, saves: -1})
	}
	slices.SortFunc(out, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.saves, b.saves)) })
	for i := 1; i < len(out); i++ {
		was := &out[i-1]
		out[i].before = was.before + was.saves*out[i].at.Sub(was.at)
		out[i].saves += was.saves
	}
	return out
}

// over returns the time of all saves, in sum, until a moment at which one begins or ends.
func (c concurrency) over(at structs.LogTime) time.Duration {
	i, _ := slices.BinarySearchFunc(c, at, func(s step, at structs.LogTime) int { return cmp.Compare(s.at, at) })
	return c[i].before
}

// Storages returns what is known of the storages that are configured or were measured, by name.
func (l *Line) Storages() []Storage {
	out := slices.SortedFunc(maps.Values(l.storages), func(a, b Storage) int { return cmp.Compare(a.Name, b.Name) })
	for i := range out {
		for _, u := range l.units {
			for _, n := range u.Limits {
				switch {
				case n.Where != whereStorage(out[i].Name):
				case u.Now:
					out[i].Turns += n.Allocs
				default:
					out[i].Waits += n.Allocs
				}
			}
		}
	}
	return out
}

func whereStorage(name string) string { return "storage " + name }
