package state

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// fill sets every field of a value, however deep, to something that is not zero and depends on n.
func fill(v reflect.Value, n int, depth int) {
	if of := pack.Expands(v.Type()); of != nil {
		x := reflect.New(of).Elem()
		fill(x, n, depth)
		pack.Compact(v, x)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(n%100 + 1))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(n%100 + 1))
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", n))
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64((n+i)%255 + 1))
		}
	case reflect.Slice:
		s := reflect.MakeSlice(v.Type(), 2, 2)
		for i := range 2 {
			fill(s.Index(i), n+i, depth+1)
		}
		v.Set(s)
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		for i := range 2 {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(k, n+i, depth+1)
			fill(e, n+i, depth+1)
			m.SetMapIndex(k, e)
		}
		v.Set(m)
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		fill(p.Elem(), n, depth+1)
		v.Set(p)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Tag.Get("codec") != "-" {
				fill(v.Field(i), n+i, depth+1)
			}
		}
	default:
		panic("fill: " + v.Type().String())
	}
}

// testTable is a table of any row type, as tests use it.
type testTable interface {
	putFilled(s *Store, n int)
	list(s *Snapshot) []any
	rowType() reflect.Type
}

func (t *Table[K, T]) rowType() reflect.Type { return reflect.TypeFor[T]() }

func (t *Table[K, T]) putFilled(s *Store, n int) {
	v := new(T)
	fill(reflect.ValueOf(v).Elem(), n, 0)
	if m, ok := any(v).(*structs.ClusterMeta); ok {
		m.Format = feature.Newest
	}
	t.in(s).put(v)
}

func (t *Table[K, T]) list(s *Snapshot) (out []any) {
	for v := range t.All(s) {
		out = append(out, v)
	}
	return out
}

// filled is a store with rows in every table, every field of every row set.
func filled(t *testing.T) *Store {
	t.Helper()
	s := New(Options{CheckWrites: true})
	for _, table := range tables {
		if table == AnyTable(Usages) || table == AnyTable(QueueUse) {
			continue // follows from the allocations
		}
		if table == AnyTable(Allocs) {
			s.StartUse()
		}
		for n := range 3 {
			table.(testTable).putFilled(s, n*7)
		}
	}
	s.SetBootstrapIndex(3)
	s.Advance(12345)
	s.CommitEntry(6)
	for _, u := range slices.Collect(QueueUse.All(s)) {
		n := *u
		n.Used, n.Total, n.Credit = structs.Amount{GPUMilli: 1, GPUMemoryMiB: 2, CPU: 3, MemoryMiB: 4}, structs.Amount{GPUMilli: 5}, structs.Amount{CPU: 6}
		QueueUse.Put(s, &n)
	}
	s.CommitEntry(7)
	s.Publish(7)
	return s
}

func write(t *testing.T, s *Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRestoreIsTheSame fails when a field of any table does not survive a snapshot (a server that restores would differ from its peers without an error).
func TestRestoreIsTheSame(t *testing.T) {
	a := filled(t)
	file := write(t, a.Snapshot())
	b, err := Read(bytes.NewReader(file), Options{CheckWrites: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Snapshot().Hash(); got != b.Snapshot().Hash() {
		t.Fatalf("hashes differ: got %v, want %v", got, b.Snapshot().Hash())
	}
	rows := 0
	for _, table := range tables {
		if table.count(a.Snapshot()) == 0 {
			t.Errorf("table %s is empty: this test does not cover it", table.Name())
		}
		if before, after := table.(testTable).list(a.Snapshot()), table.(testTable).list(b.Snapshot()); !reflect.DeepEqual(before, after) {
			t.Errorf("table %s differs:\n%+v\n%+v", table.Name(), before, after)
		}
		rows += table.count(b.Snapshot())
	}
	x, y := *a.Snapshot(), *b.Snapshot()
	if x.index != y.index || x.time != y.time || !slices.Equal(x.changed, y.changed) || x.bootstrap != y.bootstrap {
		t.Errorf("header differs: %v %v, %v %v", x.index, y.index, x.changed, y.changed)
	}
	if !bytes.Equal(file, write(t, b.Snapshot())) {
		t.Error("the snapshot of the restored state has other bytes")
	}
	if !reflect.DeepEqual(a.AllCounts(), b.AllCounts()) || !reflect.DeepEqual(a.held, b.held) || !reflect.DeepEqual(a.idem, b.idem) {
		t.Error("derived values differ")
	}
	info, err := Inspect(bytes.NewReader(file))
	if err != nil || len(info.Tables) != len(tables) || info.Index != 7 || info.Bytes != int64(len(file)) {
		t.Errorf("Inspect gave %+v, %v", info, err)
	}
	t.Logf("%d rows of %d tables, %d bytes", rows, len(tables), len(file))
}

// TestFieldsLeftOut names every field that is on purpose neither replicated nor hashed; a new one must be added here.
func TestFieldsLeftOut(t *testing.T) {
	want := []string{"Allocation.Job", "Evaluation.ClassEligible"}
	found := map[string]bool{}
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(ty reflect.Type) {
		switch ty.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array:
			walk(ty.Elem())
		case reflect.Struct:
			if seen[ty] {
				return
			}
			seen[ty] = true
			if of := pack.Expands(ty); of != nil {
				walk(of)
				return
			}
			for i := range ty.NumField() {
				f := ty.Field(i)
				if f.Tag.Get("codec") == "-" || !f.IsExported() {
					found[ty.Name()+"."+f.Name] = true
				} else {
					walk(f.Type)
				}
			}
		}
	}
	for _, table := range tables {
		walk(table.(testTable).rowType())
	}
	var got []string
	for f := range found {
		got = append(got, f)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("fields left out: %v, want %v", got, want)
	}
}

func TestDamagedFilesAreRefused(t *testing.T) {
	file := write(t, filled(t).Snapshot())
	refused := 0
	for i := 0; i < len(file); i += 1 + len(file)/997 {
		if _, err := Read(bytes.NewReader(file[:i]), Options{}); err == nil {
			t.Fatalf("the first %d of %d bytes were accepted", i, len(file))
		}
		bad := slices.Clone(file)
		bad[i] ^= 0x40
		if _, err := Read(bytes.NewReader(bad), Options{}); err == nil {
			t.Fatalf("a flipped bit at %d was accepted", i)
		}
		refused += 2
	}
	if _, err := Read(strings.NewReader("GIF89a, and so on, for more than twenty bytes"), Options{}); err == nil || !strings.Contains(err.Error(), "not a muster snapshot") {
		t.Errorf("got %v", err)
	}
	t.Logf("%d damaged files refused", refused)
}

// TestRowsThatReadDifferently refuses a row that this build packs differently from how it was written, and one that is in a
// file twice.
func TestRowsThatReadDifferently(t *testing.T) {
	good := pack.Append(nil, &structs.Namespace{Name: "team", Meta: map[string]string{"a": "1", "b": "2"}, CreateIndex: 300, ModifyIndex: 301})
	first := pack.Append(nil, &structs.Namespace{Name: "a", CreateIndex: 300, ModifyIndex: 301})
	load := func(rows ...[]byte) error {
		s := New(Options{})
		s.loading = true
		for _, row := range rows {
			if err := Namespaces.in(s).load(row); err != nil {
				return err
			}
		}
		return nil
	}
	if err := load(good); err != nil {
		t.Fatal(err)
	}
	if err := load(good, good); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("the same row twice: %v", err)
	}
	other := 0
	for i := range good {
		for b := range 256 {
			row := slices.Clone(good)
			row[i] = byte(b)
			v := new(structs.Namespace)
			if pack.Decode(row, v) != nil || bytes.Equal(pack.Append(nil, v), row) {
				continue
			}
			other++
			if err := load(first, row); err == nil {
				t.Errorf("%x is read as %+v, which is packed as %x; it was not refused", row, v, pack.Append(nil, v))
			}
		}
	}
	if other == 0 {
		t.Error("no row reads differently, so nothing was tested")
	}
}

func TestChangeInPlaceIsFound(t *testing.T) {
	s := New(Options{CheckWrites: true})
	s.Builtin()
	ns := s.Snapshot().Namespace("default")
	if err := s.VerifyImmutable(); err != nil {
		t.Fatal(err)
	}
	ns.Description = "scribbled"
	if err := s.VerifyImmutable(); err == nil || !strings.Contains(err.Error(), Namespaces.Name()) {
		t.Fatalf("got %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the changed object left the store unnoticed")
		}
	}()
	Namespaces.Put(s, &structs.Namespace{Name: "default"})
	s.CommitEntry(2)
	s.Publish(2)
}

func TestEveryFieldCountsInTheHash(t *testing.T) {
	s := New(Options{})
	fields := 0
	for _, table := range tables {
		ty := table.(testTable).rowType()
		base := reflect.New(ty).Interface()
		zero := s.digest(table.Name(), base)
		for i := range ty.NumField() {
			if f := ty.Field(i); !f.IsExported() || f.Tag.Get("codec") == "-" {
				continue
			}
			row := reflect.New(ty)
			fill(row.Elem().Field(i), 3, 0)
			if s.digest(table.Name(), row.Interface()) == zero {
				t.Errorf("%s does not count", ty.Field(i).Name)
			}
			fields++
		}
	}
	t.Logf("%d fields", fields)
}

func TestPrefixes(t *testing.T) {
	s := New(Options{})
	ids := []string{"00000000-0000-0000-0000-000000000001", "6f1c1f3e-8a52-4d0e-9a8a-1b6f0a3c2d4e", "6f1c1f3f-0000-4d0e-9a8a-1b6f0a3c2d4e", "ffffffff-ffff-ffff-ffff-ffffffffffff"}
	for _, text := range ids {
		id, err := structs.ParseID[structs.NodeID](text)
		if err != nil {
			t.Fatal(err)
		}
		Nodes.Put(s, &structs.Node{ID: id})
	}
	s.CommitEntry(1)
	snap, _ := s.Publish(1)
	for _, p := range []string{"", "0", "6", "6f1c1f3", "6f1c1f3e", "6F1C1F3E-8a5", "6f1c1f3e-8a52-4d0e-9a8a-1b6f0a3c2d4e", "f", "7", "ffffffff-ffff-ffff-ffff-ffffffffffff"} {
		var got, want []string
		seq, err := snap.NodesByPrefix(p)
		if err != nil {
			t.Fatal(err)
		}
		for n := range seq {
			got = append(got, n.ID.String())
		}
		for _, id := range ids {
			if strings.HasPrefix(id, strings.ToLower(p)) {
				want = append(want, id)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("prefix %q: got %v, want %v", p, got, want)
		}
	}
	for _, p := range []string{"xyz", strings.Repeat("0", 40)} {
		if _, err := snap.NodesByPrefix(p); err == nil {
			t.Errorf("prefix %q was accepted", p)
		}
	}
}

func TestWatch(t *testing.T) {
	s := New(Options{})
	s.Builtin()
	nodes, pools := s.Snapshot().Watch(Nodes), s.Snapshot().Watch(Pools)
	Pools.Put(s, &structs.NodePool{Name: "gpu"})
	s.CommitEntry(5)
	snap, delta := s.Publish(5)
	select {
	case <-pools:
	default:
		t.Error("the changed table woke nobody")
	}
	select {
	case <-nodes:
		t.Error("another table's change woke the watcher")
	default:
	}
	if snap.TableIndex(Pools) != 5 || snap.TableIndex(Nodes) != 0 || len(delta.Pools) != 1 || delta.Pools[0].Before != nil {
		t.Errorf("index %d, delta %+v", snap.TableIndex(Pools), delta.Pools)
	}
}

func FuzzRead(f *testing.F) {
	s := New(Options{})
	s.Builtin()
	var b bytes.Buffer
	if err := s.Snapshot().Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		if r, err := Read(bytes.NewReader(in), Options{}); err == nil && r == nil {
			t.Fatal("no store and no error")
		}
	})
}
