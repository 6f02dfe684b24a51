package agentstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/muster-sched/muster/structs"
)

// killed copies what a killed agent leaves behind.
func killed(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	for _, name := range []string{FileName, LogName} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		check(t, err)
		check(t, os.WriteFile(filepath.Join(to, name), b, 0o600))
	}
	return to
}

// model is what should be stored: the attempt of task t by allocation, -1 for none.
type model map[structs.AllocID]int64

func loaded(t *testing.T, dir string) model {
	t.Helper()
	got, err := mustOpen(t, dir).Load()
	check(t, err)
	m := model{}
	for _, r := range got.Allocs {
		m[r.Alloc.ID] = -1
		if x := r.Tasks["t"]; x != nil {
			m[r.Alloc.ID] = x.Attempt
		}
	}
	return m
}

// step makes one change at random, in the store and in the model.
func (m model) step(t *testing.T, s *Disk, rnd *rand.Rand, attempt int64) {
	t.Helper()
	a := alloc(byte(rnd.IntN(20)))
	_, there := m[a.ID]
	switch n := rnd.IntN(10); {
	case n == 0 && there:
		check(t, s.DeleteAlloc(a.ID))
		delete(m, a.ID)
	case !there:
		if err := s.PutTask(a.ID, "t", &TaskRecord{}); err == nil {
			t.Fatalf("a task of allocation %s was stored without it", a.ID)
		}
		check(t, s.PutAlloc(a))
		m[a.ID] = -1
	default:
		check(t, s.PutTask(a.ID, "t", &TaskRecord{Attempt: attempt, Handle: make([]byte, rnd.IntN(2000))}))
		m[a.ID] = attempt
	}
}

// TestKilledAgent looks after each of many changes whether the files as they are then have all of them, and whether a
// log that is torn anywhere gives what was there before one of the changes.
func TestKilledAgent(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	dir := t.TempDir()
	s, m := mustOpen(t, dir), model{}
	was := []model{{}}
	for i := range int64(150) {
		m.step(t, s, rnd, i)
		was = append(was, maps.Clone(m))
		switch {
		case i == 60: // a checkpoint: what came before is in the database
			if _, err := s.Load(); err != nil {
				t.Fatal(err)
			}
			was = was[len(was)-1:]
		case i%10 == 0:
			if got := loaded(t, killed(t, dir)); !maps.Equal(got, m) {
				t.Fatalf("after change %d the files have %v, want %v", i, got, m)
			}
		}
	}
	for range 30 {
		k := killed(t, dir)
		log := filepath.Join(k, LogName)
		b, err := os.ReadFile(log)
		check(t, err)
		at := rnd.IntN(int(s.log.at))
		if rnd.IntN(2) == 0 {
			b = b[:at]
		} else {
			clear(b[at:]) // written ahead, not yet overwritten
		}
		check(t, os.WriteFile(log, b, 0o600))
		if got := loaded(t, k); !slices.ContainsFunc(was, func(w model) bool { return maps.Equal(w, got) }) {
			t.Fatalf("a log torn at byte %d gives %v, which never was", at, got)
		}
	}
}

// TestKilledAgain opens, changes and kills many times, so that each log is read and then rewritten by the next store.
func TestKilledAgain(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	dir, m := t.TempDir(), model{}
	for round := range int64(15) {
		s := mustOpen(t, dir)
		for i := range int64(rnd.IntN(30)) {
			m.step(t, s, rnd, round*100+i)
		}
		dir = killed(t, dir)
		if got := loaded(t, killed(t, dir)); !maps.Equal(got, m) {
			t.Fatalf("round %d: %v, want %v", round, got, m)
		}
	}
}

func TestFullLog(t *testing.T) {
	dir := t.TempDir()
	s, m := mustOpen(t, dir), model{}
	for i := range int64(60) {
		a := alloc(byte(i % 7))
		check(t, s.PutAlloc(a))
		size := 300 << 10
		if i == 33 {
			size = logMax + 1
		}
		check(t, s.PutTask(a.ID, "t", &TaskRecord{Attempt: i, Handle: make([]byte, size)}))
		m[a.ID] = i
		if i%9 == 0 || i == 33 || i == 34 {
			if got := loaded(t, killed(t, dir)); !maps.Equal(got, m) {
				t.Fatalf("after change %d: %v, want %v", i, got, m)
			}
		}
	}
	st, err := os.Stat(filepath.Join(dir, LogName))
	check(t, err)
	check(t, s.Close())
	if s.checkpoints < 3 || st.Size() > logMax {
		t.Errorf("%d checkpoints, %d bytes of log", s.checkpoints, st.Size())
	}
}

// TestNoRoomForTheLog has a log that takes nothing: the database does.
func TestNoRoomForTheLog(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	check(t, err)
	s.log.file.Close()
	s.log.file = full
	m := model{}
	rnd := rand.New(rand.NewPCG(7, 8))
	for i := range int64(20) {
		m.step(t, s, rnd, i)
	}
	if got := loaded(t, killed(t, dir)); !maps.Equal(got, m) {
		t.Errorf("%v, want %v", got, m)
	}
}

// TestLogAndDatabase opens each without the other, and a store that was closed.
func TestLogAndDatabase(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	check(t, s.PutAlloc(alloc(1)))
	check(t, s.PutSwept())
	k := killed(t, dir)
	check(t, os.Remove(filepath.Join(k, FileName)))
	if got := loaded(t, k); len(got) != 0 {
		t.Errorf("a log without its database gives %v", got)
	}
	k = killed(t, dir)
	check(t, os.Remove(filepath.Join(k, LogName)))
	o, moved, err := Open(k)
	check(t, err)
	if got, err := o.Load(); err != nil || len(got.Allocs) != 0 || got.Swept || moved == "" {
		t.Errorf("a database without its log: %v, %v, moved to %q", got, err, moved)
	}
	check(t, o.Close())

	check(t, s.Close())
	if _, err := os.Lstat(filepath.Join(dir, LogName)); !os.IsNotExist(err) {
		t.Errorf("the log of a closed store: %v", err)
	}
	db, err := bolt.Open(filepath.Join(dir, FileName), 0o600, nil)
	check(t, err)
	check(t, db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketAgent)
		if f, l := b.Get(keyFormat), b.Get(keyLog); string(f) != string(formatNow) || l != nil {
			t.Errorf("a closed store has format %q and the log %x, want %q and none", f, l, formatNow)
		}
		if tx.Bucket(bucketAllocs).Bucket([]byte(alloc(1).ID.String())) == nil {
			t.Error("a closed store lacks its allocation")
		}
		return nil
	}))
	check(t, db.Close())
	if got := loaded(t, dir); len(got) != 1 {
		t.Errorf("opened again: %v", got)
	}
}

// TestDamagedLog flips one byte at each of many places. The records before the damage count, and what was acknowledged
// and is lost is counted, unless it is the last record: that one looks like a write that a crash has cut short.
func TestDamagedLog(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	var ends []int
	for i := range byte(8) {
		check(t, s.PutAlloc(alloc(i)))
		check(t, s.PutTask(alloc(i).ID, "t", &TaskRecord{Attempt: int64(i)}))
		ends = append(ends, int(s.log.at))
	}
	content, err := os.ReadFile(filepath.Join(dir, LogName))
	check(t, err)
	start := 0
	for i, end := range ends {
		for at := start; at < end; at += 37 {
			k := killed(t, dir)
			bad := bytes.Clone(content)
			bad[at] ^= 0x10
			check(t, os.WriteFile(filepath.Join(k, LogName), bad, 0o600))
			o, damage, err := Open(k)
			check(t, err)
			got, err := o.Load()
			check(t, err)
			if n := len(got.Allocs); n != i && n != i+1 {
				t.Errorf("byte %d is flipped, within the records of allocation %d: %d allocations are left", at, i, n)
			}
			if i < len(ends)-1 && !strings.Contains(damage, "acknowledged records are lost") {
				t.Errorf("byte %d of %d is flipped: the damage is %q", at, ends[len(ends)-1], damage)
			}
			if kept, _ := filepath.Glob(filepath.Join(k, LogName+".corrupt-*")); (damage != "") != (len(kept) == 1) {
				t.Errorf("damage %q, copies %q", damage, kept)
			}
			check(t, o.Close())
		}
		start = end
	}
}

func TestMalformedRecords(t *testing.T) {
	good := (&op{kind: opPut, alloc: "a", key: []byte("k"), value: []byte("value")}).encode(nil)
	if ops, err := decodeOps(good); err != nil || len(ops) != 1 || string(ops[0].value) != "value" {
		t.Fatalf(`%v, %v; want len(ops) = 1, string(ops[0].value) = "value"`, ops, err)
	}
	for i := 1; i < len(good); i++ {
		if _, err := decodeOps(good[:i]); err == nil {
			t.Errorf("the first %d bytes of an operation were accepted", i)
		}
	}
	for _, b := range [][]byte{{9, 0, 0, 0}, {opAgent, 1, 'a', 0, 0}, {opPut, 0, 0, 0}, append([]byte{opPut}, binary.AppendUvarint(nil, 1<<63)...)} {
		if ops, err := decodeOps(b); err == nil {
			t.Errorf("% x was read as %s", b, fmt.Sprint(ops))
		}
	}
}
