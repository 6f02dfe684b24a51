package structs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/pack"
)

// TestTaskStates compacts random states: the expanded ones must be equal, nil and empty lists and maps included.
func TestTaskStates(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	word := func() string {
		if r.IntN(2) == 0 {
			return words[r.IntN(len(words))]
		}
		b := make([]byte, r.IntN(300))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return string(b)
	}
	num := func() int64 {
		if r.IntN(2) == 0 {
			return 0
		}
		return int64(r.Uint64() >> r.IntN(64))
	}
	for range 3000 {
		m := map[string]*TaskState{}
		for range r.IntN(4) {
			if r.IntN(20) == 0 {
				m[word()] = nil
				continue
			}
			s := &TaskState{State: word(), Failed: r.IntN(2) == 0, Restarts: num(), LastRestart: LogTime(num()), StartedAt: LogTime(num()), FinishedAt: LogTime(num())}
			if r.IntN(4) > 0 {
				s.Events = make([]TaskEvent, r.IntN(11))
			}
			for i := range s.Events {
				s.Events[i] = TaskEvent{Type: word(), Time: LogTime(num()), Message: word(), ExitCode: num(), Signal: num(), Fails: r.IntN(2) == 0}
				if r.IntN(3) == 0 {
					s.Events[i].Details = map[string]string{}
					for range r.IntN(3) {
						s.Events[i].Details[word()] = word()
					}
				}
			}
			m[word()] = s
		}
		s := CompactTaskStates(m)
		if got := s.Expand(); !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v\nbecame\n%+v", m, got)
		}
		if s.Len() != len(m) || s != CompactTaskStates(s.Expand()) {
			t.Fatalf("%d tasks, want %d; or two forms of the same states", s.Len(), len(m))
		}
		checkPacked(t, s, m)
		for name, want := range m {
			if got := s.Get(name); !reflect.DeepEqual(got, want) {
				t.Fatalf("task %q: %+v, want %+v", name, got, want)
			}
		}
	}
	var none TaskStates
	if none.Expand() != nil || none.Len() != 0 || none.Get("main") != nil || CompactTaskStates(nil) != none {
		t.Error("the zero value is not that of a nil map")
	}
}

// checkPacked wants the states to be written as package pack writes the map, and to be read again, with no help of the map.
func checkPacked(t *testing.T, s TaskStates, m map[string]*TaskState) {
	t.Helper()
	type plain struct{ Of map[string]*TaskState }
	type compact struct{ Of TaskStates }
	want, got := pack.Append(nil, &plain{m}), pack.Append(nil, &compact{s})
	if !bytes.Equal(want, got) {
		t.Fatalf("%+v is packed as\n%q, want\n%q", m, got, want)
	}
	var back compact
	if err := pack.Decode(want, &back); err != nil || back.Of != s {
		t.Fatalf("%+v came back as %+v, %v", m, back.Of.Expand(), err)
	}
	var r TaskStates
	if rest := pack.NewReader(s.Pack(nil)); !r.Unpack(rest) || r != s {
		t.Fatalf("%+v was unpacked as %+v", m, r.Expand())
	}
}

// TestTaskStatesAreForeign reads states that a newer version or a hostile agent may send: each cut and each changed byte gives
// what a map of them gives.
func TestTaskStatesAreForeign(t *testing.T) {
	m := map[string]*TaskState{
		"main": {State: "running", StartedAt: 1 << 40, Events: []TaskEvent{{Type: "Started", Time: 5, Details: map[string]string{"a": "b"}}, {ExitCode: -3}}},
		"nil":  nil, "side": {},
	}
	type plain struct{ Of map[string]*TaskState }
	type compact struct{ Of TaskStates }
	whole := pack.Append(nil, &plain{m})
	text := func(err error) string { return strings.ReplaceAll(fmt.Sprint(err), "structs.compact", "structs.plain") }
	check := func(b []byte) {
		t.Helper()
		var want plain
		var got compact
		errWant, errGot := pack.Decode(b, &want), pack.Decode(b, &got)
		if text(errWant) != text(errGot) || errWant == nil && got.Of != CompactTaskStates(want.Of) {
			t.Fatalf("%q gives %+v, %v; as a map %+v, %v", b, got.Of.Expand(), errGot, want.Of, errWant)
		}
		var wire plain
		var wireGot compact
		_, errWant = pack.Wire.Decode(b, &wire)
		_, errGot = pack.Wire.Decode(b, &wireGot)
		if text(errWant) != text(errGot) || errWant == nil && wireGot.Of != CompactTaskStates(wire.Of) {
			t.Fatalf("%q gives %+v, %v by the rules of the wire; as a map %+v, %v", b, wireGot.Of.Expand(), errGot, wire.Of, errWant)
		}
	}
	for i := range whole {
		check(whole[:i])
		for c := range 256 {
			b := bytes.Clone(whole)
			b[i] = byte(c)
			check(b)
		}
	}
}

// TestTaskStatesFields fails when a field is added that the compact form does not have.
func TestTaskStatesFields(t *testing.T) {
	for typ, want := range map[reflect.Type]int{reflect.TypeFor[TaskState](): 7, reflect.TypeFor[TaskEvent](): 7} {
		if n := typ.NumField(); n != want {
			t.Errorf("%s has %d fields; add the new one to appendTo, taskState, pack and unpack, then to TestTaskStates", typ, n)
		}
	}
}

// TestLineageIsZero sets each field in turn.
func TestLineageIsZero(t *testing.T) {
	typ := reflect.TypeFor[Lineage]()
	for i := range typ.NumField() {
		var l Lineage
		switch f := reflect.ValueOf(&l).Elem().Field(i); f.Kind() {
		case reflect.Array:
			f.Index(3).SetUint(1)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 0, 0))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.String:
			f.SetString("x")
		default:
			f.SetInt(1)
		}
		var a Allocation
		if a.SetLineage(l); l.IsZero() || a.Line == nil {
			t.Errorf("a lineage with %s set counts as zero", typ.Field(i).Name)
		}
	}
	var a Allocation
	if a.SetLineage(Lineage{}); a.Line != nil || !a.Lineage().IsZero() {
		t.Error("a zero lineage is kept")
	}
	a.OwnLineage().Restarts = 2
	b := a
	if b.OwnLineage().Restarts = 3; a.Lineage().Restarts != 2 || !noLineage.IsZero() {
		t.Error("versions of an allocation share a lineage that one of them changed")
	}
}
