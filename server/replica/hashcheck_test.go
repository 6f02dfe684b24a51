package replica

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// The minority is decided only by an index of the log at which a majority of the voters agree.
func TestCompareHashes(t *testing.T) {
	marks := func(hs ...string) Hashes {
		var out Hashes
		for i, h := range hs {
			out.Marks = append(out.Marks, Mark{Index: structs.Index(1000 * (i + 1)), Hash: [32]byte{h[0]}})
		}
		return out
	}
	format := func(h Hashes, f structs.Format) Hashes {
		for i := range h.Marks {
			h.Marks[i].Format = f
		}
		return h
	}
	for name, c := range map[string]struct {
		mine   Hashes
		others []Hashes
		voters int
		want   hashVerdict
		at     structs.Index
	}{
		"agree":             {marks("a", "b"), []Hashes{marks("a", "b"), marks("a", "b")}, 3, hashAgrees, 2000},
		"minority":          {marks("a", "x"), []Hashes{marks("a", "b"), marks("a", "b")}, 3, hashMinority, 2000},
		"the other is":      {marks("a", "b"), []Hashes{marks("a", "b"), marks("a", "x")}, 3, hashAgrees, 2000},
		"only older common": {marks("a", "x"), []Hashes{marks("a"), marks("a")}, 3, hashAgrees, 1000},
		"one against one":   {marks("x"), []Hashes{marks("a")}, 3, hashUndecided, 0},
		"nobody answers":    {marks("a"), nil, 3, hashUndecided, 0},
		"alone":             {marks("a"), nil, 1, hashAgrees, 1000},
		"other format":      {format(marks("x"), 1), []Hashes{format(marks("a"), 2), format(marks("a"), 2)}, 3, hashUndecided, 0},
		"format was raised": {format(marks("a", "x"), 2), []Hashes{format(marks("a", "b"), 2), format(marks("a", "b"), 2)}, 3, hashMinority, 2000},
		"all differ":        {marks("x"), []Hashes{marks("a"), marks("b")}, 3, hashUndecided, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, at := compareHashes(c.mine, append([]Hashes{c.mine}, c.others...), c.voters)
			if got != c.want || at != c.at {
				t.Errorf("%s: verdict %d at %d, want %d at %d", name, got, at, c.want, c.at)
			}
		})
	}
}
