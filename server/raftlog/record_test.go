package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft-wal/types"
)

// tornDisk is a file in memory whose power fails: after `left` bytes have been written nothing more arrives.
type tornDisk struct {
	b    []byte
	left int
}

var errPower = errors.New("the power failed")

func (d *tornDisk) ReadAt(b []byte, off int64) (int, error) { return copy(b, d.b[off:]), nil }

func (d *tornDisk) WriteAt(b []byte, off int64) (int, error) {
	n := copy(d.b[off:], b[:min(len(b), d.left)])
	if d.left -= n; n < len(b) {
		return n, errPower
	}
	return n, nil
}

func (d *tornDisk) Sync() error  { return nil }
func (d *tornDisk) Close() error { return nil }

// beginTorn returns a record with vote 1 on a disk.
func beginTorn(t *testing.T) *tornDisk {
	t.Helper()
	d := &tornDisk{b: make([]byte, recordBytes), left: 1 << 30}
	m := &record{file: d}
	if err := m.write(contents{State: types.PersistentState{NextSegmentID: 7}, Stable: map[string][]byte{"vote": []byte("1")}}); err != nil {
		t.Fatal(err)
	}
	return d
}

func voteOn(d *tornDisk) (*record, string, error) {
	m := &record{}
	if err := m.read(d); err != nil {
		return nil, "", err
	}
	if m.rec.State.NextSegmentID != 7 {
		return nil, "", fmt.Errorf("the state is %+v", m.rec.State)
	}
	v, err := m.Get([]byte("vote"))
	return m, string(v), err
}

// The power fails after each byte of a write, the process continues or restarts, and it fails again. There is always an
// intact record, and a stored vote is never lost.
func TestRaftRecordIsNeverTorn(t *testing.T) {
	const long = 600 // more than two copies of the record
	for cut := 0; cut < long; cut += 5 {
		for _, restart := range []bool{false, true} {
			for _, cut2 := range []int{0, 1, cut, cut + 30, 2 * long} {
				d := beginTorn(t)
				m, vote, err := voteOn(d)
				if err != nil {
					t.Fatal(err)
				}
				d.left = cut
				err1 := m.Set([]byte("vote"), []byte("2"))
				if err1 == nil {
					vote = "2"
				}
				if restart {
					d.left = 1 << 30
					var got string
					if m, got, err = voteOn(d); err != nil || got < vote {
						t.Fatalf("cut at %d: vote %s, %v; want %s or newer", cut, got, err, vote)
					}
					vote = got
				}
				d.left = cut2
				if m.Set([]byte("vote"), []byte("3")) == nil {
					vote = "3"
				}
				d.left = 1 << 30
				if _, got, err := voteOn(d); err != nil || got < vote {
					t.Fatalf("cut at %d and %d, started anew between: %v: vote %s, %v; want %s or newer", cut, cut2, restart, got, err, vote)
				}
			}
		}
	}
}

// Damage to one copy does no harm; damage to both is refused.
func TestRaftRecordDamage(t *testing.T) {
	for _, at := range []int{0, 9, 17, 21, copyHead, copyHead + 30, copyBytes + 3, copyBytes + 10, copyBytes + 18, copyBytes + copyHead + 5} {
		d := beginTorn(t)
		d.b[at] ^= 0x10
		if _, vote, err := voteOn(d); vote != "1" || err != nil {
			t.Errorf("byte %d damaged: vote %q, %v", at, vote, err)
		}
		d.b[copyHead+2] ^= 1
		d.b[copyBytes+copyHead+2] ^= 1
		if _, _, err := voteOn(d); !errors.Is(err, ErrDamaged) {
			t.Errorf("both copies damaged: %v", err)
		}
	}
	dir := t.TempDir()
	if err := beginRecord(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, recordName), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := (&record{}).Load(dir); !errors.Is(err, ErrDamaged) {
		t.Errorf("a record that was cut off: %v", err)
	}
}
