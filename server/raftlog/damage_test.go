package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/smalldisk"
)

// newestFile returns the file that the log writes to.
func newestFile(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	return files[len(files)-1]
}

func patch(t *testing.T, path string, at int64, b []byte) (was []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	was = make([]byte, len(b))
	if _, err := f.ReadAt(was, at); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	return was
}

// filled makes a log of some writes. It returns where each ends in the newest file of the wal backend.
func filled(t *testing.T, dir string, o Options, size int, writes, each uint64) (ends []int64) {
	t.Helper()
	l := mustOpen(t, dir, o)
	for w := range writes {
		store(t, l, size, w*each+1, w*each+each)
		if o.Backend == WAL {
			ends = append(ends, int64(len(bytes.TrimRight(readFile(t, newestFile(t, dir)), "\x00"))+7)&^7)
		}
	}
	if err := l.SetUint64([]byte("CurrentTerm"), 3); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	return ends
}

// TestDamage: a bit that flips on the disk is detected, or does no harm. No acknowledged entry is lost silently, except
// in the last write of the wal backend, because damage there looks like a write that a crash tore.
func TestDamage(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		t.Run("1_write", func(t *testing.T) { damageEachByte(t, o, 1) })
		t.Run("16_writes", func(t *testing.T) { damageEachByte(t, o, 16) })
	})
}

func damageEachByte(t *testing.T, o Options, writes uint64) {
	dir := memoryDir(t)
	const size, per = 24, 3
	last := writes * per
	ends := filled(t, dir, o, size, writes, per)
	path := filepath.Join(dir, "boltdb", boltName)
	page := int64(os.Getpagesize())
	end := int64(0)
	maybeLast := func(int64) bool { return false }
	stride := int64(29)
	if testing.Short() {
		stride = 149
	}
	near := func(at int64) int64 { // the next byte to look at
		if at%page < 100 && !testing.Short() {
			return at + 1
		}
		return at + stride
	}
	if o.Backend == WAL {
		path, end = newestFile(t, dir), ends[writes-1]
		maybeLast = func(at int64) bool { return writes == 1 || at >= ends[writes-2] }
		near = func(at int64) int64 { return at + stride }
	} else if st, err := os.Stat(path); err == nil {
		end = st.Size()
	}
	restore := saved(t, dir)
	refused, shorter := 0, 0
	for at := int64(0); at < end && !t.Failed(); at = near(at) {
		for _, flip := range []byte{0x01, 0x80} {
			was := patch(t, path, at, []byte{0})
			patch(t, path, at, []byte{was[0] ^ flip})
			l, err := Open(dir, o, hclog.NewNullLogger())
			switch {
			case errors.Is(err, ErrDamaged) && strings.Contains(err.Error(), "remove-peer"):
				refused++
			case err != nil:
				t.Errorf("byte %d: %v, want to hear what to do", at, err)
			default:
				if err := wantEntries(l, size, last); err != nil {
					if !maybeLast(at) {
						t.Errorf("byte %d of %d, flip %#x: opened, and %v", at, end, flip, err)
					} else if err := wantEntries(l, size, last-per); err != nil {
						t.Errorf("byte %d, in the last write: opened, and %v", at, err)
					}
					shorter++
				}
				if term, err := l.GetUint64([]byte("CurrentTerm")); term != 3 || err != nil {
					t.Errorf("byte %d: the term is %d, %v", at, term, err)
				}
				if err := l.Close(); err != nil {
					t.Errorf("byte %d: close: %v", at, err)
				}
			}
			restore()
		}
	}
	t.Logf("%d bytes: %d refused, %d opened without the last write", end, refused, shorter)
	if refused == 0 && (writes > 1 || o.Backend == BoltDB) || shorter == 0 && o.Backend == WAL {
		t.Errorf("%d refused, %d opened without the last write: the test damages nothing", refused, shorter)
	}
	l := mustOpen(t, dir, o)
	if err := wantEntries(l, size, last); err != nil {
		t.Error("after all was repaired: ", err)
	}
	mustClose(t, l)
}

// TestDamagedRecord: damage to one copy of term and vote does no harm; damage to both is refused.
func TestDamagedRecord(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		dir := memoryDir(t)
		filled(t, dir, o, 24, 4, 3)
		restore := saved(t, dir)
		path := filepath.Join(dir, string(o.Backend), recordName)
		for _, at := range []int64{0, 9, 17, 21, copyHead, copyHead + 20} {
			for _, first := range []int64{0, copyBytes} {
				was := patch(t, path, first+at, []byte{0})
				patch(t, path, first+at, []byte{was[0] ^ 0x10})
				l := mustOpen(t, dir, o)
				if term, err := l.GetUint64([]byte("CurrentTerm")); term != 3 || err != nil {
					t.Errorf("byte %d of a copy: the term is %d, %v", at, term, err)
				}
				if err := wantEntries(l, 24, 12); err != nil {
					t.Error(err)
				}
				mustClose(t, l)
				restore()
			}
			patch(t, path, at, []byte{0xff})
			patch(t, path, copyBytes+at, []byte{0xff})
			wantRefused(t, dir, o, fmt.Sprintf("byte %d of both copies", at))
			restore()
		}
	})
}

// TestMissingFiles: a log that lost a file is never mistaken for an empty one. The file endName may be missing, as in a
// log of an earlier build.
func TestMissingFiles(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		dir := memoryDir(t)
		filled(t, dir, o, 24, 4, 3)
		restore := saved(t, dir)
		files, err := filepath.Glob(filepath.Join(dir, string(o.Backend), "*"))
		if err != nil || len(files) < 2 {
			t.Fatal(files, err)
		}
		for _, path := range files {
			if filepath.Base(path) == endName {
				for _, spoil := range []func() error{func() error { return os.Remove(path) }, func() error { return os.Truncate(path, 0) }} {
					if err := spoil(); err != nil {
						t.Fatal(err)
					}
					l := mustOpen(t, dir, o)
					if err := wantEntries(l, 24, 12); err != nil {
						t.Error(err)
					}
					mustClose(t, l)
					restore()
				}
				continue
			}
			os.Remove(path)
			if !strings.HasSuffix(path, ".wal") { // a removed newest file looks like one that a crash prevented
				wantRefused(t, dir, o, "without "+filepath.Base(path))
			}
			restore()
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(path, ".wal") {
				wantRefused(t, dir, o, "with an empty "+filepath.Base(path))
			}
			restore()
		}
	})
}

// TestDamagedFrames checks a file of the wal backend alone, with every bit damaged.
func TestDamagedFrames(t *testing.T) {
	const writes = 12
	dir := memoryDir(t)
	ends := filled(t, dir, Options{Backend: WAL}, 24, writes, 3)
	path := newestFile(t, dir)
	file := readFile(t, path)
	for at := range ends[writes-1] {
		for bit := range 8 {
			b := bytes.Clone(file[:ends[writes-1]+64])
			b[at] ^= 1 << bit
			if commits, _, stop := readFrames(b); commits < writes-1 && !wholeWriteBehind(b) {
				t.Fatalf("bit %d of byte %d is damaged: read to %d, %d of %d writes, and nothing seems lost", bit, at, stop, commits, writes)
			}
		}
	}
	for _, bytes := range []int64{ends[writes-1] - 8, ends[4], ends[4] - 11} { // a file whose end is lost
		if err := os.Truncate(path, bytes); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, dir, Options{Backend: WAL}, fmt.Sprintf("cut at %d", bytes))
	}
	if err := os.Truncate(path, 40); err != nil { // without a whole write: left by a crash
		t.Fatal(err)
	}
	l := mustOpen(t, dir, Options{Backend: WAL})
	store(t, l, 24, 1, 5)
	mustClose(t, l)
}

// TestCutBoltFile: a B-tree file whose end is lost is refused, or has lost nothing.
func TestCutBoltFile(t *testing.T) {
	dir, o := memoryDir(t), Options{Backend: BoltDB}
	filled(t, dir, o, 400, 20, 3)
	path := filepath.Join(dir, "boltdb", boltName)
	restore, refused := saved(t, dir), 0
	for size := int64(len(readFile(t, path))) - 1; size > 0; size -= 1500 {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir, o, hclog.NewNullLogger())
		if err == nil {
			if err := wantEntries(l, 400, 60); err != nil {
				t.Errorf("cut at %d: opened, and %v", size, err)
			}
			l.Close()
		} else if refused++; !errors.Is(err, ErrDamaged) {
			t.Errorf("cut at %d: %v, want to hear of damage", size, err)
		}
		restore()
	}
	if refused == 0 {
		t.Error("nothing was refused: the test cuts nothing")
	}
}

// TestOlderTree: an intact file of an earlier time, as a flipped page number may yield one, is refused.
func TestOlderTree(t *testing.T) {
	dir, o := memoryDir(t), Options{Backend: BoltDB}
	path := filepath.Join(dir, "boltdb", boltName)
	l := mustOpen(t, dir, o)
	store(t, l, 24, 1, 40)
	older := readFile(t, path)
	store(t, l, 24, 41, 42)
	mustClose(t, l)
	if err := os.WriteFile(path, older, 0o600); err != nil {
		t.Fatal(err)
	}
	want := "ends with entry 40, but entry 42 was acknowledged"
	if _, err := Open(dir, o, hclog.NewNullLogger()); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), want) {
		t.Errorf("opened with %v, want %q", err, want)
	}
}

// TestEndAfterRemoval: a log opens after each way of removing entries, also where there are none.
func TestEndAfterRemoval(t *testing.T) {
	for _, remove := range [][2]uint64{{1, 10}, {0, 10}, {5, 10}, {8, 20}, {1, 4}, {12, 20}} {
		dir, o := memoryDir(t), Options{Backend: BoltDB}
		l := mustOpen(t, dir, o)
		for range 2 { // each begins without entries
			if err := l.DeleteRange(remove[0], remove[1]); err != nil {
				t.Fatalf("remove %d: %v", remove, err)
			}
			mustClose(t, l)
			l = mustOpen(t, dir, o)
			store(t, l, 24, 1, 10)
			if err := l.DeleteRange(remove[0], remove[1]); err != nil {
				t.Fatalf("remove %d: %v", remove, err)
			}
			mustClose(t, l)
			l = mustOpen(t, dir, o)
			if err := l.DeleteRange(1, 10); err != nil {
				t.Fatal(err)
			}
		}
		mustClose(t, l)
	}
}

// TestTornWrite: a write torn at any point by a power cut is gone, or whole; the log continues after it.
func TestTornWrite(t *testing.T) {
	for cut := int64(0); cut < 160; cut += 24 {
		for _, rest := range []byte{0, 0xa5} {
			dir, o := memoryDir(t), Options{Backend: WAL}
			l := mustOpen(t, dir, o)
			store(t, l, 24, 1, 4)
			path := newestFile(t, dir)
			begin := int64(len(bytes.TrimRight(readFile(t, path), "\x00"))+7) &^ 7
			store(t, l, 24, 5, 6)
			end := int64(len(bytes.TrimRight(readFile(t, path), "\x00"))+7) &^ 7
			l.Close()
			if begin+cut >= end {
				return
			}
			patch(t, path, begin+cut, bytes.Repeat([]byte{rest}, int(end-begin-cut)))
			l = mustOpen(t, dir, o)
			if err := wantEntries(l, 24, 4); err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			store(t, l, 24, 5, 9)
			l.Close()
			l = mustOpen(t, dir, o)
			if err := wantEntries(l, 24, 9); err != nil {
				t.Fatalf("cut at %d, went on: %v", cut, err)
			}
			l.Close()
		}
	}
}

// TestTornCommit: a power cut leaves any part of a commit's pages on the disk, but not its root. The commit is gone,
// and the log continues after the one before.
func TestTornCommit(t *testing.T) {
	for _, o := range []Options{{Backend: BoltDB}, {Backend: BoltDB, NoFreelistSync: true}} {
		dir := memoryDir(t)
		path := filepath.Join(dir, "boltdb", boltName)
		l := mustOpen(t, dir, o)
		store(t, l, 24, 1, 40)
		before, end := readFile(t, path), readFile(t, filepath.Join(dir, "boltdb", endName))
		store(t, l, 24, 41, 80)
		after := readFile(t, path)
		mustClose(t, l)
		const sector = 512
		var changed []int // sectors after the meta pages that the commit wrote
		for at := 2 * os.Getpagesize(); at < len(after); at += sector {
			if at >= len(before) || !bytes.Equal(before[at:at+sector], after[at:at+sector]) {
				changed = append(changed, at)
			}
		}
		if len(changed) < 8 {
			t.Fatalf("the commit changed %d sectors", len(changed))
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		for round := range 60 {
			b := append(bytes.Clone(before), make([]byte, len(after)-len(before))...)
			for i, at := range changed {
				if round < 20 && i*20 < round*len(changed) || round >= 20 && rnd.IntN(2) == 0 {
					copy(b[at:], after[at:at+sector])
				}
			}
			if round%3 == 0 { // the root was being written, too
				for page := 0; page < 2*os.Getpagesize(); page += os.Getpagesize() {
					if !bytes.Equal(before[page:page+80], after[page:page+80]) {
						copy(b[page+16:page+40], after[page+16:page+40])
						copy(b[page+40:page+80], bytes.Repeat([]byte{0xa5}, 40))
					}
				}
			}
			if err := errors.Join(os.WriteFile(path, b, 0o600), os.WriteFile(filepath.Join(dir, "boltdb", endName), end, 0o600)); err != nil {
				t.Fatal(err)
			}
			l := mustOpen(t, dir, o)
			if err := wantEntries(l, 24, 40); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			store(t, l, 24, 41, 90)
			mustClose(t, l)
			l = mustOpen(t, dir, o)
			if err := wantEntries(l, 24, 90); err != nil {
				t.Fatalf("round %d, went on: %v", round, err)
			}
			mustClose(t, l)
		}
	}
}

// TestCrashAtTheEndOfAFile: a server may die between the write that fills a file and the record of the next file, and
// that write may be torn.
func TestCrashAtTheEndOfAFile(t *testing.T) {
	for _, torn := range []string{"", "commit", "index"} {
		dir, o := memoryDir(t), Options{Backend: WAL}
		l := mustOpen(t, dir, o)
		const size = 1 << 20
		var meta []byte
		path, last := newestFile(t, dir), uint64(0)
		for newestFile(t, dir) == path {
			meta = readFile(t, filepath.Join(dir, "wal", recordName))
			last++
			store(t, l, size, last, last)
			if last == 1 {
				path = newestFile(t, dir)
			}
			l.entries.DeleteRange(math.MaxUint64, math.MaxUint64) // waits for the next file, if one is being created
		}
		if err := l.SetUint64([]byte("CurrentTerm"), 9); err != nil {
			t.Fatal(err)
		}
		l.Close()
		if err := os.Remove(newestFile(t, dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "wal", recordName), meta, 0o600); err != nil {
			t.Fatal(err)
		}
		end := int64(len(bytes.TrimRight(readFile(t, path), "\x00"))+7) &^ 7
		switch torn {
		case "commit":
			patch(t, path, end-8, make([]byte, 8))
		case "index":
			patch(t, path, end-24, make([]byte, 16))
		}
		if torn != "" {
			last--
		}
		for range 2 {
			l = mustOpen(t, dir, o)
			if err := wantEntries(l, size, last); err != nil {
				t.Fatalf("torn %q: %v", torn, err)
			}
			last++
			store(t, l, size, last, last)
			l.Close()
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "wal.*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// TestFullDisk: a log on a full disk refuses entries, keeps what it has, stores a vote, and accepts entries again once
// there is room.
func TestFullDisk(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		o.SegmentBytes = 0
		dir, fill, free := smalldisk.Mount(t, 96<<20)
		l := mustOpen(t, dir, o)
		const size = 1 << 20
		last := uint64(0)
		write := func() error {
			err := l.StoreLogs([]*raft.Log{entryOf(last+1, size)})
			if err == nil {
				last++
			}
			return err
		}
		for range 5 {
			if err := write(); err != nil {
				t.Fatal(err)
			}
		}
		for round := range 2 {
			fill()
			var err error
			for i := 0; err == nil; i++ {
				if err = write(); i > 100 {
					t.Fatal("the disk does not fill up")
				}
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("round %d: %v, want to hear that the disk is full", round, err)
			}
			if err := l.SetUint64([]byte("CurrentTerm"), uint64(round)+5); err != nil {
				t.Errorf("round %d: the term could not be stored: %v", round, err)
			}
			if err := wantEntries(l, size, last); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if round == 1 { // restarted on the full disk
				l.Close()
				l = mustOpen(t, dir, o)
				if err := wantEntries(l, size, last); err != nil {
					t.Fatal(err)
				}
			}
			free()
			for range 3 {
				if err := write(); err != nil {
					t.Fatalf("round %d: there is room again: %v", round, err)
				}
			}
		}
		l.Close()
		l = mustOpen(t, dir, o)
		defer l.Close()
		if err := wantEntries(l, size, last); err != nil {
			t.Fatal(err)
		}
		if term, err := l.GetUint64([]byte("CurrentTerm")); term != 6 || err != nil {
			t.Errorf("the term is %d, %v", term, err)
		}
	})
}
