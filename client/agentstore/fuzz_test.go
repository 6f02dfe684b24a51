package agentstore

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/muster-sched/muster/internal/rpc"
)

// FuzzLog reads any bytes as the log after a crash: the operations of a record survive another encoding, nothing is
// read beyond the record, and no count of lost records exceeds what the bytes could hold.
func FuzzLog(f *testing.F) {
	var ops []byte
	for _, o := range []op{{kind: opPut, alloc: "a", key: []byte("k"), value: []byte("v")}, {kind: opDelete, alloc: "a"}, {kind: opAgent, key: []byte("x")}} {
		ops = o.encode(ops)
	}
	f.Add(ops)
	f.Add([]byte{opPut, 1, 'a', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		behind(b, 1, 0)
		if _, body := record(b, 1); len(body) > len(b) {
			t.Fatalf("a record of %d bytes in %d", len(body), len(b))
		}
		list, err := decodeOps(b)
		if err != nil {
			return
		}
		var again []byte
		for i := range list {
			again = list[i].encode(again)
		}
		if len(again) > len(b) {
			t.Fatalf("%d bytes became %d", len(b), len(again))
		}
		back, err := decodeOps(again)
		if err != nil || !reflect.DeepEqual(back, list) {
			t.Fatalf("%v was read back as %v, %v", list, back, err)
		}
	})
}

// FuzzRecords reads any bytes as the records of an allocation and a task: what decodes is written and read again.
func FuzzRecords(f *testing.F) {
	for _, v := range []any{&TaskRecord{}, &Final{}, &storedAlloc{}} {
		b, err := rpc.Encode(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(TaskRecord), new(Final), new(storedAlloc)} {
			if decode(b, v, "it") != nil {
				continue
			}
			again, err := rpc.Encode(v)
			if err != nil {
				t.Fatalf("%T decodes and does not encode: %v", v, err)
			}
			next := reflect.New(reflect.TypeOf(v).Elem()).Interface()
			if err := decode(again, next, "it"); err != nil {
				t.Fatalf("%T was encoded and does not decode: %v", v, err)
			}
			if third, err := rpc.Encode(next); err != nil || !bytes.Equal(third, again) {
				t.Fatalf("the encoding of %T is not stable: %v", v, err)
			}
		}
	})
}
