package structs

import (
	"encoding/binary"
	"iter"
)

// TaskStates are the states of an allocation's tasks by name, read-only and in few bytes. Servers keep them for every
// allocation: a running task with three events takes about 50 bytes instead of 600. Logs, snapshots and calls have them
// as a map[string]*TaskState (a stand-in of package pack).
type TaskStates struct {
	packed string // "": the nil map
}

// CompactTaskStates returns the compact form of a map.
func CompactTaskStates(m map[string]*TaskState) (s TaskStates) {
	s.Compact(m)
	return s
}

// Compact sets s to the compact form of a map.
func (s *TaskStates) Compact(m map[string]*TaskState) {
	s.packed = ""
	if m == nil {
		return
	}
	var few [256]byte
	b := binary.AppendUvarint(few[:0], uint64(len(m)))
	for _, name := range sortedKeys(m) {
		b = m[name].appendTo(appendWord(b, name))
	}
	s.packed = string(b)
}

// Expand returns the states as a new map.
func (s TaskStates) Expand() map[string]*TaskState {
	if s.packed == "" {
		return nil
	}
	m := make(map[string]*TaskState, s.Len())
	for name, t := range s.All() {
		m[name] = t
	}
	return m
}

// Len returns the number of tasks.
func (s TaskStates) Len() int {
	r := compactReader(s.packed)
	return r.count()
}

// Get returns a copy of the state of a task, or nil.
func (s TaskStates) Get(name string) *TaskState {
	for n, t := range s.All() {
		if n == name {
			return t
		}
	}
	return nil
}

// All returns copies of the states, in the order of the names.
func (s TaskStates) All() iter.Seq2[string, *TaskState] {
	return func(yield func(string, *TaskState) bool) {
		r := compactReader(s.packed)
		for range r.count() {
			name := r.word()
			var p *TaskState
			if t, ok := r.taskState(nil); ok {
				p = &t
			}
			if !yield(name, p) {
				return
			}
		}
	}
}

// words are strings that most states have. They take one byte each. The list is not part of any format.
var words = []string{
	"", "pending", "running", "dead", "main", "task",
	"Received", "Task received by client", "Task Setup", "Building Task Directory", "Started", "Task started by client",
	"Terminated", "Exit Code: 0", "Exit Code: 1", "Killing", "Killed", "Task successfully killed", "Restarting", "Not Restarting",
	"Driver", "Driver Failure", "Setup Failure", "Checkpoint", "Restart Signaled", "Signaling", "Sibling Task Failed", "Template",
	"Downloading Artifacts", "Client is downloading artifacts", "Main Tasks Dead", "Main tasks in the group died", "Leader Task Dead",
	"exit_code", "signal", "oom_killed", "exit_message", "0", "1", "true", "false",
	"complete", "failed", "lost", "unknown", "run", "stop", "evict", "tasks are running", "all tasks have ended well",
}

// Share returns a string from words that is equal to s, or s. It is for strings that were decoded into memory of their own.
func Share[S ~string](s S) S {
	if i, ok := wordOf[string(s)]; ok {
		return S(words[i])
	}
	return s
}

var wordOf = func() map[string]int {
	m := make(map[string]int, len(words))
	for i, w := range words {
		m[w] = i
	}
	return m
}()

// appendWord appends a string: twice its place in words, or one more than twice its length and its bytes.
func appendWord(b []byte, w string) []byte {
	if i, ok := wordOf[w]; ok {
		return binary.AppendUvarint(b, uint64(i)*2)
	}
	return append(binary.AppendUvarint(b, uint64(len(w))*2+1), w...)
}

// appendLen appends the length of a list or map that may be nil.
func appendLen(b []byte, n int, isNil bool) []byte {
	if isNil {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, uint64(n)+1)
}

// Bits of the first byte of a state and of an event.
const (
	compactNil  = 1 << iota // the pointer to the state is nil, and nothing follows
	compactFail             // Failed, or Fails
	compactRare             // numbers that are usually 0 follow
)

func (t *TaskState) appendTo(b []byte) []byte {
	if t == nil {
		return append(b, compactNil)
	}
	rare := t.Restarts != 0 || t.LastRestart != 0
	b = appendWord(append(b, compactFlags(t.Failed, rare)), t.State)
	if rare {
		b = binary.AppendVarint(binary.AppendVarint(b, t.Restarts), int64(t.LastRestart))
	}
	b = binary.AppendVarint(b, int64(t.StartedAt))
	b = binary.AppendVarint(b, int64(t.FinishedAt))
	b = appendLen(b, len(t.Events), t.Events == nil)
	last := t.StartedAt
	for i := range t.Events {
		e := &t.Events[i]
		rare := e.ExitCode != 0 || e.Signal != 0
		b = appendWord(appendWord(append(b, compactFlags(e.Fails, rare)), e.Type), e.Message)
		b = binary.AppendVarint(b, int64(e.Time-last))
		last = e.Time
		if rare {
			b = binary.AppendVarint(binary.AppendVarint(b, e.ExitCode), e.Signal)
		}
		b = appendLen(b, len(e.Details), e.Details == nil)
		if len(e.Details) == 0 {
			continue
		}
		for _, k := range sortedKeys(e.Details) {
			b = appendWord(appendWord(b, k), e.Details[k])
		}
	}
	return b
}

func compactFlags(fail, rare bool) (f byte) {
	if fail {
		f |= compactFail
	}
	if rare {
		f |= compactRare
	}
	return f
}

// compactReader reads what appendTo and its like have written. It is never given anything else.
type compactReader string

func (r *compactReader) byte() byte {
	c := (*r)[0]
	*r = (*r)[1:]
	return c
}

func (r *compactReader) uvarint() (v uint64) {
	for shift := 0; ; shift += 7 {
		c := r.byte()
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
}

func (r *compactReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *compactReader) word() string {
	u := r.uvarint()
	if u&1 == 0 {
		return words[u>>1]
	}
	w := (*r)[:u>>1]
	*r = (*r)[u>>1:]
	return string(w)
}

// count reads the number of tasks.
func (r *compactReader) count() int {
	if *r == "" {
		return 0
	}
	return int(r.uvarint())
}

// len reads a length that appendLen has written; ok is false for nil.
func (r *compactReader) len() (n int, ok bool) {
	u := r.uvarint()
	return int(u) - 1, u > 0
}

// taskState reads a state. Its events are in room, if they fit. ok is false if the pointer to the state was nil.
func (r *compactReader) taskState(room []TaskEvent) (t TaskState, ok bool) {
	flags := r.byte()
	if flags&compactNil != 0 {
		return t, false
	}
	t.State, t.Failed = r.word(), flags&compactFail != 0
	if flags&compactRare != 0 {
		t.Restarts, t.LastRestart = r.varint(), LogTime(r.varint())
	}
	t.StartedAt, t.FinishedAt = LogTime(r.varint()), LogTime(r.varint())
	n, ok := r.len()
	if !ok {
		return t, true
	}
	if n <= len(room) && room != nil {
		t.Events = room[:n]
	} else {
		t.Events = make([]TaskEvent, n)
	}
	last := t.StartedAt
	for i := range t.Events {
		flags := r.byte()
		e := TaskEvent{Fails: flags&compactFail != 0, Type: r.word(), Message: r.word()}
		e.Time = last + LogTime(r.varint())
		last = e.Time
		if flags&compactRare != 0 {
			e.ExitCode, e.Signal = r.varint(), r.varint()
		}
		if k, ok := r.len(); ok {
			e.Details = make(map[string]string, k)
			for range k {
				key := r.word()
				e.Details[key] = r.word()
			}
		}
		t.Events[i] = e
	}
	return t, true
}
