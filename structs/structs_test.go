package structs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestIDText(t *testing.T) {
	id := DeriveID[NodeID](Seed{1, 2, 3}, "node", "k", 7)
	text := id.String()
	if len(text) != 36 || text[14] != '4' || !strings.ContainsRune("89ab", rune(text[19])) {
		t.Fatalf("%q is not in the shape of a random UUID", text)
	}
	back, err := ParseID[NodeID](text)
	if err != nil || back != id {
		t.Fatalf("parse %q: %v %v", text, back, err)
	}
	var zero NodeID
	if zero.String() != "" || !zero.IsZero() || zero.Short() != "" {
		t.Error("the zero id has text")
	}
	if got, err := ParseID[NodeID](""); err != nil || !got.IsZero() {
		t.Errorf("empty text: %v %v", got, err)
	}
	for _, bad := range []string{"x", text[:35], text + "0", strings.ReplaceAll(text, "-", "_"), strings.Repeat("g", 8) + text[8:], strings.Repeat("a", 1<<20)} {
		_, err := ParseID[NodeID](bad)
		if CodeOf(err) != CodeInvalid {
			t.Errorf("%.40q: want an invalid-error, got %v", bad, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%.40q: the error repeats %d bytes of it", bad, len(err.Error()))
		}
	}
	var u NodeID
	if err := u.UnmarshalText([]byte(text)); err != nil || u != id {
		t.Errorf("unmarshal: %v %v", u, err)
	}
}

// The same arguments give the same id for ever: logs are replayed by later releases.
func TestDerivedIDsAreFixed(t *testing.T) {
	if got := DeriveID[EvalID](Seed{1}, "eval", "default/web", 3).String(); got != "b3584546-8d5c-491e-8c85-e4c58fa30dd6" {
		t.Errorf("got %s", got)
	}
	a := DeriveAllocID(EvalID{1}, 10, "g", 0)
	if a != DeriveAllocID(EvalID{1}, 10, "g", 0) {
		t.Fatalf("not deterministic: got %v, want %v", a, DeriveAllocID(EvalID{1}, 10, "g", 0))
	}
	seen := map[AllocID]string{a: "a"}
	for i, b := range []AllocID{DeriveAllocID(EvalID{2}, 10, "g", 0), DeriveAllocID(EvalID{1}, 11, "g", 0), DeriveAllocID(EvalID{1}, 10, "h", 0), DeriveAllocID(EvalID{1}, 10, "g", 1)} {
		if seen[b] != "" {
			t.Errorf("case %d collides", i)
		}
		seen[b] = fmt.Sprint(i)
	}
	// People type 8 characters; of a job of 1,000 few may be ambiguous.
	short := map[string]bool{}
	for i := range 1000 {
		short[DeriveAllocID(EvalID{9}, 77, "g", i).Short()] = true
	}
	if len(short) < 980 {
		t.Errorf("only %d of 1,000 allocations have a short id of their own", len(short))
	}
}

func TestErrors(t *testing.T) {
	err := fmt.Errorf("register: %w", Errorf(CodeConflict, "job %q changed", "web"))
	if CodeOf(err) != CodeConflict || !errors.Is(err, &Error{Code: CodeConflict}) || errors.Is(err, &Error{Code: CodeDenied}) {
		t.Error("a wrapped error lost its code")
	}
	if got := CodeOf(errors.New("x")); got != CodeInternal {
		t.Errorf("a foreign error must be internal: got %v, want %v", got, CodeInternal)
	}
	for _, c := range []ErrorCode{CodeInvalid, CodeDenied, CodeNotFound, CodeMethod, CodeConflict, CodeTooLarge, CodeUnprocessable, CodeBusy, CodeInternal, CodeUnsupported, CodeNoLeader, CodeUnavailable, CodeTimeout, CodeUnknown} {
		if s := c.Status(); s < 400 || s > 599 {
			t.Errorf("%s has status %d", c, s)
		}
	}
}

func held(n byte, cpu int64, client ClientStatus, waits ...AllocID) *Allocation {
	return &Allocation{ID: AllocID{n}, Resources: Vector{CPU: cpu, MemoryMiB: cpu * 2}, Client: client, WaitsOn: waits}
}

func TestUsage(t *testing.T) {
	for name, c := range map[string]struct {
		allocs []*Allocation
		cpu    int64
	}{
		"nothing":                                       {nil, 0},
		"pending holds from the plan on":                {[]*Allocation{held(1, 100, ClientPending)}, 100},
		"unknown holds, its node may run":               {[]*Allocation{held(1, 100, ClientUnknown)}, 100},
		"ended ones hold nothing":                       {[]*Allocation{held(1, 100, ClientComplete), held(2, 50, ClientFailed), held(3, 7, ClientLost)}, 0},
		"a stop holds until it has ended":               {[]*Allocation{{ID: AllocID{1}, Resources: Vector{CPU: 9}, Desired: DesiredStop, Client: ClientRunning}}, 9},
		"a replacement owns what its predecessor frees": {[]*Allocation{held(1, 100, ClientRunning), held(2, 80, ClientPending, AllocID{1})}, 100},
		"a larger replacement is charged the rest":      {[]*Allocation{held(1, 100, ClientRunning), held(2, 130, ClientPending, AllocID{1})}, 130},
		"once the predecessor has ended it pays itself": {[]*Allocation{held(1, 100, ClientComplete), held(2, 80, ClientPending, AllocID{1})}, 80},
		"waiting on one elsewhere frees nothing here":   {[]*Allocation{held(2, 80, ClientPending, AllocID{9})}, 80},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Usage(c.allocs); got.CPU != c.cpu {
				t.Errorf("%s: %d MHz, want %d", name, got.CPU, c.cpu)
			}
		})
	}
}

func TestGroupVector(t *testing.T) {
	task := func(cpu int64, hook string, sidecar bool) *Task {
		tk := &Task{Resources: Resources{CPU: cpu, MemoryMiB: cpu}}
		if hook != "" {
			tk.Lifecycle = &Lifecycle{Hook: hook, Sidecar: sidecar}
		}
		return tk
	}
	g := &Group{Disk: EphemeralDisk{SizeMiB: 300}, Tasks: []*Task{
		task(100, "", false), task(50, "poststart", false), task(20, "prestart", true), task(500, "prestart", false), task(30, "poststop", false),
	}}
	// Before the main tasks: 500 + 20; with them: 100 + 50 + 20; after them: 30.
	if v := GroupVector(g); v.CPU != 520 || v.MemoryMiB != 520 || v.DiskMiB != 300 {
		t.Errorf("got %+v", v)
	}
}

func TestVectorFits(t *testing.T) {
	a := Vector{1, 1, 1, 1}
	if !a.Fits(a) || a.Add(a).Fits(a) || !a.Sub(a).Fits(a) {
		t.Error("Fits")
	}
	for _, b := range []Vector{{2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}} {
		if b.Fits(a) {
			t.Errorf("%+v fits %+v", b, a)
		}
	}
}
