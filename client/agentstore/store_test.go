package agentstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/muster-sched/muster/structs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func alloc(n byte) *structs.Allocation {
	id := structs.AllocID{n, 1, 2, 3}
	job := &structs.Job{Namespace: "default", ID: "j", Version: uint64(n), Groups: []*structs.Group{{Name: "g", Tasks: []*structs.Task{{Name: "t", Driver: "fake", Config: []byte(`{"a":1}`)}}}}}
	return &structs.Allocation{ID: id, Namespace: "default", JobID: "j", JobVersion: uint64(n), Job: job, Group: "g", Desired: structs.DesiredRun, AllocIndex: structs.Index(n)}
}

func mustOpen(t *testing.T, dir string) *Disk {
	t.Helper()
	s, moved, err := Open(dir)
	if err != nil || moved != "" {
		t.Fatalf("open: %v, moved to %q", err, moved)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEverythingComesBack(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	a, b, gone := alloc(1), alloc(2), alloc(3)
	task := &TaskRecord{
		Attempt: 3, Handle: []byte("h"), Old: []byte("o"), Phase: PhaseBackoff, Recent: []structs.LogTime{1, 2}, ResumeAt: 9, BootID: "boot", Forced: true, Epoch: 4, Frozen: 7, Saved: &structs.Saved{Time: 5, Bytes: 6, Path: "p"},
		State: &structs.TaskState{State: "running", Restarts: 3, Events: []structs.TaskEvent{{Type: "Started", Details: map[string]string{"k": "v"}}}},
	}
	if v := reflect.ValueOf(*task); true {
		for i := range v.NumField() { // a new field must be added here
			if v.Field(i).IsZero() {
				t.Fatalf("the test leaves TaskRecord.%s zero", v.Type().Field(i).Name)
			}
		}
	}
	final := &Final{Observed: structs.AllocObserved{ID: b.ID, Client: structs.ClientFailed, TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"t": {State: "dead", Failed: true}})}, Acked: true, EndedAt: 77}
	used := &GPUUses{BootID: "boot", List: []GPUUse{{Alloc: a.ID, Task: "t", GPU: "G", Since: 1, Measured: 2, UsedBytes: 3, PeakBytes: 4, MiBMillis: 5, SMMillis: 6, EnergyMJ: 7, Denied: 8, Counter: 9}}}
	check(t, s.PutGPUUses(used))
	history := History{Cluster: structs.ClusterID{5}, Epoch: 2, Index: 99}
	value := "v"
	meta := map[string]*string{"set": &value, "hidden": nil}
	for _, err := range []error{
		s.PutAlloc(a), s.PutAlloc(b), s.PutAlloc(gone), s.PutTask(a.ID, "t", task), s.PutTask(gone.ID, "t", task), s.PutFinal(b.ID, final),
		s.PutHistory(history), s.PutMeta(meta), s.PutSwept(), s.DeleteAlloc(gone.ID), s.DeleteAlloc(gone.ID),
	} {
		check(t, err)
	}
	if err := s.PutTask(gone.ID, "t", task); err == nil {
		t.Error("a task of a deleted allocation was stored")
	}
	check(t, s.Close())
	if err := s.PutAlloc(a); !errors.Is(err, ErrClosed) {
		t.Errorf("a write after Close: %v", err)
	}

	got, err := mustOpen(t, dir).Load()
	check(t, err)
	want := &Saved{
		Allocs:  []*AllocRecord{{Alloc: a, Tasks: map[string]*TaskRecord{"t": task}}, {Alloc: b, Tasks: map[string]*TaskRecord{}, Final: final}},
		History: history, Meta: meta, Swept: true, GPU: used,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s, want\n%s", show(got), show(want))
	}
}

func show(s *Saved) string {
	var b strings.Builder
	for _, r := range s.Allocs {
		fmt.Fprintf(&b, "%+v job %+v final %+v\n", r.Alloc, r.Alloc.Job, r.Final)
		for n, t := range r.Tasks {
			fmt.Fprintf(&b, "  %s %+v state %+v\n", n, t, t.State)
		}
	}
	fmt.Fprintf(&b, "%+v %v %+v", s.History, s.Meta, s.GPU)
	return b.String()
}

func TestCommitsAreShared(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	const writers, each = 64, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			a := alloc(byte(w))
			if err := s.PutAlloc(a); err != nil {
				t.Error(err)
			}
			for range each - 1 {
				if err := s.PutTask(a.ID, "t", &TaskRecord{Attempt: 1}); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	check(t, s.Close())
	if s.changes != writers*each {
		t.Errorf("%d changes were written, want %d", s.changes, writers*each)
	}
	if s.commits > s.changes/4 {
		t.Errorf("%d commits for %d changes by %d writers", s.commits, s.changes, writers)
	}
	t.Logf("%d changes in %d commits", s.changes, s.commits)
}

func TestOneWriterFailsAlone(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			a := alloc(byte(i))
			if i%5 == 0 { // never stored
				if err := s.PutTask(a.ID, "t", &TaskRecord{}); err == nil {
					t.Error("stored a task without its allocation")
				}
				return
			}
			if err := s.PutAlloc(a); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	got, err := s.Load()
	check(t, err)
	if len(got.Allocs) != 40 {
		t.Errorf("%d allocations, want 40", len(got.Allocs))
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, dir)
	_, moved, err := Open(dir)
	if !errors.Is(err, ErrInUse) || moved != "" {
		t.Errorf("a second agent: %v, moved to %q", err, moved)
	}
}

// TestBrokenFiles breaks a good file in many ways. Opening it must return either the stored data, or an empty store
// with the broken file kept next to it, and never fail, hang or crash.
func TestBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	for i := range 30 {
		check(t, s.PutAlloc(alloc(byte(i))))
		check(t, s.PutTask(alloc(byte(i)).ID, "t", &TaskRecord{Attempt: int64(i), Handle: make([]byte, 200)}))
	}
	check(t, s.Close())
	good, err := os.ReadFile(filepath.Join(dir, FileName))
	check(t, err)
	seed := rand.Uint64()
	if s := os.Getenv("MUSTER_SEED"); s != "" {
		seed, err = strconv.ParseUint(s, 10, 64)
		check(t, err)
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d (repeat with MUSTER_SEED)", seed)
	kept, movedAside := 0, 0
	for i := range 60 {
		b := append([]byte(nil), good...)
		switch i % 6 {
		case 0:
			b = b[:rnd.IntN(len(b))]
		case 1: // a torn write
			at := rnd.IntN(len(b))
			clear(b[at:min(len(b), at+4096)])
		case 2:
			for range 20 {
				b[rnd.IntN(len(b))] ^= byte(1 + rnd.IntN(255))
			}
		case 3:
			b = nil
		case 4: // both meta pages
			clear(b[:8192])
		case 5:
			for k := range b {
				b[k] = byte(rnd.Uint32())
			}
		}
		d := t.TempDir()
		check(t, os.WriteFile(filepath.Join(d, FileName), b, 0o600))
		s, moved, err := Open(d)
		if err != nil {
			t.Fatalf("case %d: %v", i, err)
		}
		if err := s.PutAlloc(alloc(200)); err != nil && moved != "" {
			t.Errorf("case %d: the fresh store does not take a write: %v", i, err)
		}
		if moved == "" {
			kept++
		} else {
			movedAside++
			aside, _ := filepath.Glob(filepath.Join(d, FileName+".corrupt-*"))
			if len(aside) != 1 || !strings.Contains(moved, aside[0]) {
				t.Fatalf("case %d: moved aside are %q, and the damage is %q", i, aside, moved)
			}
			if old, err := os.ReadFile(aside[0]); err != nil || len(old) < len(b) {
				t.Errorf("case %d: the broken file is not whole at %s: %v", i, aside[0], err)
			}
			if got, err := s.Load(); err != nil || len(got.Allocs) != 1 {
				t.Errorf("case %d: the fresh store holds %v, %v", i, got, err)
			}
		}
		s.Close()
	}
	t.Logf("%d files were read in spite of the damage, %d were moved aside", kept, movedAside)
	if kept == 0 || movedAside == 0 {
		t.Error("one of the two never happened")
	}
}

func BenchmarkPutTask(b *testing.B) {
	s, _, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	a := alloc(1)
	if err := s.PutAlloc(a); err != nil {
		b.Fatal(err)
	}
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := s.PutTask(a.ID, "t", &TaskRecord{Handle: make([]byte, 100)}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.ReportMetric(float64(s.changes)/float64(max(s.commits, 1)), "changes/commit")
}
