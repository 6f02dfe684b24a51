package structs

import (
	"bytes"
	"encoding/binary"

	"github.com/muster-sched/muster/internal/pack"
)

// Pack appends what package pack would append for Expand.
func (s TaskStates) Pack(b []byte) []byte {
	if s.packed == "" {
		return pack.AppendNil(b)
	}
	r := compactReader(s.packed)
	n := r.count()
	b = pack.AppendMap(b, n)
	var few [TaskEventsKept]TaskEvent
	for range n {
		b = pack.AppendString(b, r.word())
		if t, ok := r.taskState(few[:]); ok {
			b = t.pack(b)
		} else {
			b = pack.AppendNil(b)
		}
	}
	return b
}

// pack writes the fields that are not zero, in the order of their names. unpackState reads them.
func (t *TaskState) pack(b []byte) []byte {
	b = pack.AppendMap(b, count(t.Events != nil, t.Failed, t.FinishedAt != 0, t.LastRestart != 0, t.Restarts != 0, t.StartedAt != 0, t.State != ""))
	if t.Events != nil {
		b = pack.AppendArray(pack.AppendString(b, "Events"), len(t.Events))
		for i := range t.Events {
			b = t.Events[i].pack(b)
		}
	}
	if t.Failed {
		b = pack.AppendBool(pack.AppendString(b, "Failed"), true)
	}
	b = appendNumber(b, "FinishedAt", int64(t.FinishedAt))
	b = appendNumber(b, "LastRestart", int64(t.LastRestart))
	b = appendNumber(b, "Restarts", t.Restarts)
	b = appendNumber(b, "StartedAt", int64(t.StartedAt))
	return appendText(b, "State", t.State)
}

func (e *TaskEvent) pack(b []byte) []byte {
	b = pack.AppendMap(b, count(e.Details != nil, e.ExitCode != 0, e.Fails, e.Message != "", e.Signal != 0, e.Time != 0, e.Type != ""))
	if e.Details != nil {
		b = pack.AppendMap(pack.AppendString(b, "Details"), len(e.Details))
		for _, k := range sortedKeys(e.Details) {
			b = pack.AppendString(pack.AppendString(b, k), e.Details[k])
		}
	}
	b = appendNumber(b, "ExitCode", e.ExitCode)
	if e.Fails {
		b = pack.AppendBool(pack.AppendString(b, "Fails"), true)
	}
	b = appendText(b, "Message", e.Message)
	b = appendNumber(b, "Signal", e.Signal)
	b = appendNumber(b, "Time", int64(e.Time))
	return appendText(b, "Type", e.Type)
}

// count returns how many are true.
func count(all ...bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

func appendNumber(b []byte, name string, v int64) []byte {
	if v == 0 {
		return b
	}
	return pack.AppendInt(pack.AppendString(b, name), v)
}

func appendText(b []byte, name, v string) []byte {
	if v == "" {
		return b
	}
	return pack.AppendString(pack.AppendString(b, name), v)
}

// Unpack reads what Pack has written. It gives up on names that are not in order, unknown fields, more than TaskEventsKept events
// of a task, and nil in place of zero.
func (s *TaskStates) Unpack(r *pack.Reader) bool {
	s.packed = ""
	if r.Nil() {
		return true
	}
	var few [256]byte
	var events [TaskEventsKept]TaskEvent
	b := few[:0]
	if !entries(r, func(n int) { b = binary.AppendUvarint(b, uint64(n)) }, func(name []byte) bool {
		b = appendWord(b, word(name))
		if r.Nil() {
			b = (*TaskState)(nil).appendTo(b)
			return true
		}
		t, ok := unpackState(r, events[:])
		if ok {
			b = t.appendTo(b)
		}
		return ok
	}) {
		return false
	}
	s.packed = string(b)
	return true
}

// unpackState puts the events into room, and gives up if there are more.
func unpackState(r *pack.Reader, room []TaskEvent) (t TaskState, ok bool) {
	ok = entries(r, nil, func(name []byte) bool {
		switch string(name) {
		case "Events":
			n, err := r.Array()
			if err != nil || n > len(room) {
				return false
			}
			t.Events = room[:n]
			clear(t.Events)
			for i := range t.Events {
				if !t.Events[i].unpack(r) {
					return false
				}
			}
			return true
		case "Failed":
			return readBool(r, &t.Failed)
		case "FinishedAt":
			return readNumber(r, &t.FinishedAt)
		case "LastRestart":
			return readNumber(r, &t.LastRestart)
		case "Restarts":
			return readNumber(r, &t.Restarts)
		case "StartedAt":
			return readNumber(r, &t.StartedAt)
		case "State":
			return readText(r, &t.State)
		}
		return false
	})
	return t, ok
}

func (e *TaskEvent) unpack(r *pack.Reader) bool {
	return entries(r, nil, func(name []byte) bool {
		switch string(name) {
		case "Details":
			return entries(r, func(n int) { e.Details = make(map[string]string, min(n, 16)) }, func(name []byte) bool {
				var v string
				ok := readText(r, &v)
				e.Details[word(name)] = v
				return ok
			})
		case "ExitCode":
			return readNumber(r, &e.ExitCode)
		case "Fails":
			return readBool(r, &e.Fails)
		case "Message":
			return readText(r, &e.Message)
		case "Signal":
			return readNumber(r, &e.Signal)
		case "Time":
			return readNumber(r, &e.Time)
		case "Type":
			return readText(r, &e.Type)
		}
		return false
	})
}

// entries reads a map whose names are in order. begin, if it is not nil, gets their number; each reads the value of a name.
func entries(r *pack.Reader, begin func(n int), each func(name []byte) bool) bool {
	n, err := r.Map()
	if err != nil {
		return false
	}
	if begin != nil {
		begin(n)
	}
	var last []byte
	for i := range n {
		name, err := r.Bytes()
		if err != nil || i > 0 && bytes.Compare(last, name) >= 0 || !each(name) {
			return false
		}
		last = name
	}
	return true
}

func readBool(r *pack.Reader, v *bool) (ok bool) {
	var err error
	*v, err = r.Bool()
	return err == nil
}

func readNumber[T ~int64](r *pack.Reader, v *T) (ok bool) {
	n, err := r.Int()
	*v = T(n)
	return err == nil
}

func readText(r *pack.Reader, v *string) (ok bool) {
	b, err := r.Bytes()
	*v = word(b)
	return err == nil
}

// word returns the string of these bytes, from words if it is one of them.
func word(b []byte) string {
	if i, ok := wordOf[string(b)]; ok {
		return words[i]
	}
	return string(b)
}
