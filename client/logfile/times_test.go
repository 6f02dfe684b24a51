package logfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/taskfs"
)

var began = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// timed is a log that is written at times of the test's choice.
type timed struct {
	t *testing.T
	Rotated
	max int64
}

func newTimed(t *testing.T, dir *taskfs.Dir, keep int, maxSize int64) *timed {
	w := &timed{t, Rotated{Dir: dir, Base: "a.stdout", Keep: keep, Flag: os.O_APPEND}, maxSize}
	if err := w.Use(w.Newest()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func (w *timed) at(after time.Duration, text string) {
	w.t.Helper()
	if w.Size >= w.max {
		if err := w.Next(); err != nil {
			w.t.Fatal(err)
		}
	}
	n, err := w.File.WriteString(text)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Wrote(int64(n), began.Add(after))
}

// readTimes returns a log as "TEXT@SECONDS", a piece for each frame.
func readTimes(t *testing.T, dir *taskfs.Dir, o Options) string {
	t.Helper()
	var out []string
	o.Times = true
	err := Log(t.Context(), dir, "a.stdout", o, func(f Frame) error {
		at := "?"
		if f.Time != 0 {
			at = fmt.Sprint(time.Unix(0, f.Time).Sub(began).Seconds())
		}
		if f.Event != "" {
			at = f.Event
		}
		out = append(out, strings.TrimSpace(string(f.Data))+"@"+at)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func TestTimes(t *testing.T) {
	r, _ := root(t)
	w := newTimed(t, r, 10, 6)
	w.at(0, "a\n")
	w.at(50*time.Millisecond, "b\n") // too soon for another time
	w.at(2*time.Second, "c\n")       // the file is full
	w.at(3*time.Second, "d\n")
	w.at(5*time.Second, "e\n")
	const all = "a\nb@0 c@2 d@3 e@5"
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, all},
		{Options{Offset: 1}, "b@0 c@2 d@3 e@5"},
		{Options{Origin: End, Offset: 4}, "d@3 e@5"},
		{Options{Since: began.Add(-time.Hour)}, all},
		{Options{Since: began.Add(2 * time.Second)}, "c@2 d@3 e@5"},
		{Options{Since: began.Add(2050 * time.Millisecond)}, "c@2 d@3 e@5"}, // b's record may stand for what came 100 ms later
		{Options{Since: began.Add(2200 * time.Millisecond)}, "d@3 e@5"},
		{Options{Since: began.Add(6 * time.Second)}, ""},
		{Options{Since: began.Add(2 * time.Second), Origin: End, Offset: 2}, "e@5"},
		{Options{Since: began.Add(4 * time.Second), Origin: End, Offset: 8}, "e@5"},
	} {
		if got := readTimes(t, r, c.o); got != c.want {
			t.Errorf("%+v: %q, want %q", c.o, got, c.want)
		}
	}
	// A writer that begins again continues the index; a clock that was set back is noted.
	w.Close()
	w = newTimed(t, r, 10, 1<<20)
	w.at(5010*time.Millisecond, "f\n")
	w.at(4*time.Second, "g\n")
	if got, want := readTimes(t, r, Options{Origin: End, Offset: 6}), "e@5 f@5.01 g@4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTimesGoWithTheirFile: an index is removed with the file that rotation removes.
func TestTimesGoWithTheirFile(t *testing.T) {
	r, dir := root(t)
	w := newTimed(t, r, 2, 1)
	for i := range 5 {
		w.at(time.Duration(i)*time.Second, "xx")
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 4 || names[0].Name() != ".a.stdout.3.times" {
		t.Errorf("%v %v, want two files and their indexes", names, err)
	}
}

// TestIndexesThatATaskWrote: what is no index leaves times out and loses no byte of the log.
func TestIndexesThatATaskWrote(t *testing.T) {
	record := func(off, at int64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(off)), uint64(at))
	}
	second := int64(time.Second)
	for name, c := range map[string]struct {
		index []byte
		want  string
	}{
		"none":       {nil, "hello@?"},
		"half":       {record(0, began.UnixNano())[:9], "hello@?"},
		"cut":        {append(record(0, began.UnixNano()), 1, 2, 3), "hello@0"},
		"from later": {record(2, began.UnixNano()), "he@? llo@0"},
		"negative":   {append(record(-5, 1), record(0, began.UnixNano()+second)...), "hello@1"},
		"backwards":  {append(record(3, began.UnixNano()), record(1, began.UnixNano()+second)...), "hel@? lo@0"},
		"beyond":     {append(record(0, began.UnixNano()), record(1<<62, 5)...), "hello@0"},
	} {
		r, dir := root(t)
		write(t, dir, "a.stdout.0", "hello")
		if c.index != nil {
			write(t, dir, ".a.stdout.0.times", string(c.index))
		}
		if got := readTimes(t, r, Options{}); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := readTimes(t, r, Options{Since: time.Now().Add(time.Hour)}); got != "" {
			t.Errorf("%s: %q of a file that was written before", name, got)
		}
		if got := readTimes(t, r, Options{Since: began.Add(-time.Hour)}); !strings.Contains(got, "lo@") {
			t.Errorf("%s: %q of a file that was written since", name, got)
		}
	}
	r, dir := root(t)
	write(t, dir, "a.stdout.0", "hello")
	if err := os.Symlink("/proc/self/stat", filepath.Join(dir, ".a.stdout.0.times")); err != nil {
		t.Fatal(err)
	}
	if got := readTimes(t, r, Options{}); got != "hello@?" {
		t.Errorf("through a link: %q", got)
	}
	w := newTimed(t, r, 2, 1<<20)
	w.at(0, " there")
	if got := readTimes(t, r, Options{}); got != "hello there@?" {
		t.Errorf("a writer beside a link: %q", got)
	}
}

// TestIndexIsSmall: however a task writes, its index stays below a quarter of the log, or a record a second.
func TestIndexIsSmall(t *testing.T) {
	r, dir := root(t)
	w := newTimed(t, r, 2, 1<<30)
	const writes = 60_000
	for i := range writes {
		w.at(time.Duration(i)*timeApart, "x")
	}
	st, err := os.Stat(filepath.Join(dir, ".a.stdout.0.times"))
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(timesFree + writes/10*timeSize); st.Size() > most || st.Size() < timesFree {
		t.Errorf("%d bytes for %d of the log, want at most %d", st.Size(), writes, most)
	}
}

// TestLateTime: whether data has a time that its writer has still to note; a follower that finds none continues without.
func TestLateTime(t *testing.T) {
	r, dir := root(t)
	w := newTimed(t, r, 2, 1<<20)
	w.at(0, "a\n")
	write(t, dir, "a.stdout.0", "b\n") // written, and not yet noted
	done := make(chan struct{})
	var got bytes.Buffer
	err := Log(t.Context(), r, "a.stdout", Options{Follow: true, Times: true, Origin: End, Offset: 2, Done: done}, func(f Frame) error {
		fmt.Fprintf(&got, "%s@%v", bytes.TrimSpace(f.Data), time.Unix(0, f.Time).Sub(began))
		close(done)
		return nil
	})
	if err != nil || got.String() != "b@0s" { // it was never noted: the last time stands
		t.Errorf("%q %v", got.String(), err)
	}
	var at times
	at.load(r, "a.stdout", 0)
	if now := began.Add(time.Minute); !at.late(2, now) || at.late(0, now) || at.late(2, began.Add(timeCoarse)) {
		t.Error("late is wrong")
	}
	w.Size = 2
	w.Wrote(2, began.Add(time.Minute))
	if at.load(r, "a.stdout", 0); at.late(2, began.Add(2*time.Minute)) {
		t.Error("it is late although it is there")
	}
}
