package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/structs"
)

// decisionFile is a file that gets the decisions of a state.
type decisionFile struct {
	t     *testing.T
	path  string
	store *state.Store
	index structs.Index
	fail  int // bytes that the next write takes before it fails; 0: all
}

// decide adds an entry of n rows to the state.
func (f *decisionFile) decide(n int) {
	f.index += 3
	d := &state.Decisions{Index: f.index, Namespace: "default", JobID: fmt.Sprintf("job-%d", f.index)}
	for range n {
		d.Add(&structs.DecisionRow{Kind: structs.DecidedPlace, Places: 1})
	}
	f.store.PutDecisions(d)
	f.store.CommitEntry(f.index)
	f.store.Publish(f.index)
}

func (f *decisionFile) Write(b []byte) (int, error) {
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	if f.fail > 0 {
		n, _ := file.Write(b[:min(f.fail, len(b))])
		f.fail = 0
		return n, errors.New("the disk is full")
	}
	return file.Write(b)
}

// start begins as an agent does.
func (f *decisionFile) start() *decisionLog {
	f.t.Helper()
	d := &decisionLog{w: f}
	if _, err := os.Stat(f.path); err == nil {
		if err := d.resume(f.path); err != nil {
			f.t.Fatal(err)
		}
	}
	return d
}

// rows returns the lines of the file as "SEQ@INDEX" and "missed N".
func (f *decisionFile) rows() string {
	f.t.Helper()
	b, err := os.ReadFile(f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for line := range bytes.Lines(b) {
		var row struct {
			nomadlike.Decision
			Missed uint64
		}
		switch err := json.Unmarshal(line, &row); {
		case err != nil:
			out = append(out, "torn")
		case row.Missed > 0:
			out = append(out, fmt.Sprintf("missed %d from %d", row.Missed, row.Seq))
		default:
			out = append(out, fmt.Sprintf("%d@%d", row.Seq, row.Index))
		}
	}
	return strings.Join(out, " ")
}

func TestDecisionLogFile(t *testing.T) {
	f := &decisionFile{t: t, path: filepath.Join(t.TempDir(), "decisions.jsonl"), store: state.New(state.Options{})}
	d := f.start()
	step := func(want string) {
		t.Helper()
		if err := d.write(f.store.Snapshot()); err != nil {
			t.Fatal(err)
		}
		if got := f.rows(); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	f.decide(2)
	f.decide(1)
	step("1@3 2@3 3@6")
	step("1@3 2@3 3@6")
	d = f.start()
	step("1@3 2@3 3@6")
	f.decide(1)
	step("1@3 2@3 3@6 4@9")

	// An agent that starts again sees an older state at first, while the log is replayed.
	old := &decisionFile{t: t, path: f.path, store: state.New(state.Options{})}
	old.decide(2)
	d = f.start()
	if err := d.write(old.store.Snapshot()); err != nil {
		t.Fatal(err)
	}
	step("1@3 2@3 3@6 4@9")

	// A write that fails leaves half a line, and is repeated.
	f.decide(1)
	f.fail = 7
	if d.write(f.store.Snapshot()) == nil {
		t.Fatal("a write that failed is no error")
	}
	step("1@3 2@3 3@6 4@9 torn 5@12")
	if err := os.WriteFile(f.path, []byte(`{"Seq":4,"Index":9}`+"\n"+`{"Seq":5,"In`), 0o600); err != nil {
		t.Fatal(err)
	}
	d = f.start()
	step("4@9 torn 5@12")

	// The cluster keeps structs.DecisionsKept rows: what is gone is counted.
	f.decide(2)
	f.decide(structs.DecisionsKept - 1)
	if err := d.write(f.store.Snapshot()); err != nil {
		t.Fatal(err)
	}
	if got := f.rows(); !strings.HasPrefix(got, "4@9 torn 5@12 missed 2 from 6 8@18 9@18 ") || strings.Count(got, "@18") != structs.DecisionsKept-1 {
		t.Fatalf("after more than is kept: %q", got[:200])
	}

	// An older state is restored: the log continues after it, with numbers that were used before.
	restored := &decisionFile{t: t, path: f.path, store: state.New(state.Options{})}
	restored.decide(2)
	restored.index = f.index
	restored.decide(1)
	if err := os.WriteFile(f.path, []byte(`{"Seq":9,"Index":18}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, f.store = f.start(), restored.store
	step("9@18 3@21")

	for _, text := range []string{"hello\n", "{}\n", "{\"Missed\": 3}\n"} {
		if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := new(decisionLog).resume(f.path); err == nil || !strings.Contains(err.Error(), "name another file") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
