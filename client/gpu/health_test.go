package gpu

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestQuarantineEndsWhenTheDriverIsContent(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	const wait = 10 * time.Minute
	var h health
	xid := func(e Event) bool { return h.xid(e, (&Config{}).xidAction(e.XID), (&Config{}).xidFails(e.XID), now) }
	h.sample(Sample{ECCUncorrected: 7}, now) // errors from before the agent's time are no news
	want := func(s State, reason string) {
		t.Helper()
		if v := h.verdict(now, wait, -1); v.State != s || !strings.Contains(v.Reason, reason) || (s == Healthy) != (v.Reason == "") {
			t.Errorf("verdict is %+v, want %s %q", v, s, reason)
		}
	}
	want(Healthy, "")
	if xid(Event{XID: 13, GI: -1}) || xid(Event{XID: 154, GI: -1}) || xid(Event{GI: -1}) {
		t.Error("a fault of the program was taken for the device's")
	}
	want(Healthy, "")
	xid(Event{XID: 79, GI: -1})
	want(Quarantined, "XID 79")
	now = now.Add(5 * time.Minute)
	h.sample(Sample{ECCUncorrected: 7, Recovery: 1}, now)
	want(Quarantined, "XID 79 (fell off the bus); the driver asks for a GPU reset")
	now = now.Add(20 * time.Minute)
	want(Quarantined, "a GPU reset")
	h.sample(Sample{}, now) // reset: counters start at zero
	now = now.Add(wait - time.Second)
	want(Quarantined, "XID 79")
	now = now.Add(time.Second)
	want(Healthy, "")
	h.sample(Sample{ECCUncorrected: 1}, now)
	want(Quarantined, "1 new uncorrected")
	h.sample(Sample{Lost: true}, now)
	want(Lost, "lost")
	now = now.Add(wait)
	h.sample(Sample{ECCUncorrected: 1, Recovery: 99}, now)
	want(Quarantined, "recovery action 99")
	h.sample(Sample{ECCUncorrected: 1, RowsPending: true}, now)
	now = now.Add(wait)
	want(Degraded, "row waits")
	h.sample(Sample{ECCUncorrected: 1, RowsFailed: true}, now)
	now = now.Add(24 * time.Hour)
	want(Quarantined, "replace the GPU")
	h.sample(Sample{ECCUncorrected: 1}, now)
	xid(Event{XID: 95, GI: 3})
	want(Healthy, "")
	if v := h.verdict(now, wait, 3); v.State != Quarantined {
		t.Errorf("the instance is %+v", v)
	}
	if v := h.verdict(now.Add(wait), wait, 3); v.State != Healthy {
		t.Errorf("the instance stays %+v", v)
	}
}

func TestMessagesHaveALimit(t *testing.T) {
	var b bytes.Buffer
	if err := writeMessage(&b, message{Err: strings.Repeat("x", messageMax)}); err == nil || b.Len() != 0 {
		t.Errorf("%v, %d bytes written", err, b.Len())
	}
	b.Write([]byte{0xff, 0xff, 0xff, 0xff})
	var m message
	if err := readMessage(&b, &m); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Error(err)
	}
}

func TestFabricNamesIslands(t *testing.T) {
	isle := islands([]Device{
		{UUID: "a", Bus: "1", Fabric: "f.1", Links: []Link{{Switch: true}}}, {UUID: "b", Bus: "2", Fabric: "f.2", Links: []Link{{Switch: true}}},
		{UUID: "c", Bus: "3"}, {UUID: "d", Bus: "5", Links: []Link{{Bus: "4"}}}, {UUID: "e", Bus: "4"}, {UUID: "f", Bus: "6", Links: []Link{{Bus: "9"}}},
	})
	want := map[string]string{"a": "fabric-f.1", "b": "fabric-f.2", "d": "nvlink-4", "e": "nvlink-4"}
	if len(isle) != len(want) {
		t.Errorf("islands are %v", isle)
	}
	for k, v := range want {
		if isle[k] != v {
			t.Errorf("%s is in %q, want %q", k, isle[k], v)
		}
	}
}

func TestSizesAndDifferencesOfOneName(t *testing.T) {
	s := &Snapshot{Driver: "1", GPUs: []Device{
		{UUID: "a", Name: "X", Bus: "1", MemoryBytes: 40 << 30, Persistence: "Enabled", ComputeCapability: "8.0"},
		{UUID: "b", Name: "X", Bus: "2", MemoryBytes: 80 << 30}, {UUID: "c", Name: "X", Bus: "3", MemoryBytes: 40 << 30, Persistence: "Disabled", ComputeCapability: "8.0"},
	}}
	g := groups(s, func(string, int64) Verdict { return Verdict{State: Healthy} })
	if len(g) != 2 || g[0].Name != "X 40GiB" || g[1].Name != "X 80GiB" || len(g[0].Instances) != 2 {
		t.Fatalf("groups are %+v", g)
	}
	if _, ok := g[0].Attributes["persistence_mode"]; ok || g[0].Attributes["cuda_compute"].Str != "8.0" {
		t.Errorf("attributes are %+v", g[0].Attributes)
	}
}

// TestSlowedDown: a GPU that its hardware keeps slowing down is degraded, for a moment of it or a limit of its owner's it
// is not.
func TestSlowedDown(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	const wait = 10 * time.Minute
	var h health
	look := func(bits int64) Verdict {
		now = now.Add(5 * time.Second)
		h.sample(Sample{Throttle: bits}, now)
		return h.verdict(now, wait, -1)
	}
	for i, bits := range []int64{0x40, 0x40, 0, 0x80, 0x4, 0x40, 0x40} { // 4 is the power limit
		if v := look(bits); v.State != Healthy {
			t.Errorf("look %d: %+v", i, v)
		}
	}
	if v := look(0x44); v.State != Degraded || !strings.Contains(v.Reason, "too hot") {
		t.Errorf("three looks in a row: %+v", v)
	}
	if v := look(0); v.State != Degraded {
		t.Errorf("it is well at once: %+v", v)
	}
	now = now.Add(wait)
	if v := look(0); v.State != Healthy {
		t.Errorf("it stays %+v", v)
	}
	look(0x80)
	look(0x80)
	if v := look(0x80); v.State != Degraded || !strings.Contains(v.Reason, "power supply") {
		t.Errorf("brake: %+v", v)
	}
	h.sample(Sample{PagesPending: true}, now)
	if v := h.verdict(now.Add(wait), wait, -1); v.State != Degraded || !strings.Contains(v.Reason, "retired") {
		t.Errorf("pages: %+v", v)
	}
}

func TestOperatorsRulesOfErrors(t *testing.T) {
	c := Config{XIDs: map[int64]XIDAction{13: XIDQuarantine, 74: XIDDegrade, 79: XIDIgnore, 94: XIDProgram}}
	for code, want := range map[int64]struct {
		device bool
		state  State
		failed bool
	}{13: {true, Quarantined, true}, 31: {false, Healthy, false}, 48: {true, Quarantined, true}, 63: {true, Degraded, false}, 74: {true, Degraded, false}, 79: {false, Healthy, false},
		94: {false, Healthy, false}, 500: {true, Quarantined, false}} {
		var h health
		now := time.Unix(1_000_000, 0)
		if device := h.xid(Event{XID: code, GI: -1}, c.xidAction(code), c.xidFails(code), now); device != want.device {
			t.Errorf("XID %d: the device's fault: %v", code, device)
		}
		if v := h.verdict(now, time.Minute, -1); v.State != want.state || v.Failed != want.failed {
			t.Errorf("XID %d: %+v", code, v)
		}
	}
}

// TestFailureIsTheGPUs: a verdict says that the GPU failed only for what no program can have caused, until its quarantine ends.
func TestFailureIsTheGPUs(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	const wait = 10 * time.Minute
	for name, c := range map[string]struct {
		does   func(h *health)
		failed bool
	}{
		"fell off the bus":      {func(h *health) { h.xid(Event{XID: 79, GI: -1}, XIDQuarantine, true, now) }, true},
		"new memory errors":     {func(h *health) { h.sample(Sample{}, now); h.sample(Sample{ECCUncorrected: 2}, now) }, true},
		"lost":                  {func(h *health) { h.sample(Sample{Lost: true}, now) }, true},
		"row not remapped":      {func(h *health) { h.sample(Sample{RowsFailed: true}, now) }, true},
		"an unknown number":     {func(h *health) { h.xid(Event{XID: 500, GI: -1}, XIDQuarantine, false, now) }, false},
		"the driver asks alone": {func(h *health) { h.sample(Sample{Recovery: 1}, now) }, false},
		"a program, then the driver asks": {func(h *health) {
			h.xid(Event{XID: 31, GI: -1}, XIDProgram, false, now)
			h.sample(Sample{Recovery: 1}, now)
		}, false},
		"fell off the bus, then the driver asks": {func(h *health) {
			h.xid(Event{XID: 79, GI: -1}, XIDQuarantine, true, now)
			h.sample(Sample{Recovery: 1}, now)
		}, true},
		"slow": {func(h *health) { h.sample(Sample{RowsPending: true}, now) }, false},
	} {
		var h health
		c.does(&h)
		if v := h.verdict(now, wait, -1); v.State == Healthy || v.Failed != c.failed {
			t.Errorf("%s: %+v", name, v)
		}
		h.sample(Sample{ECCUncorrected: h.ecc}, now)
		if v := h.verdict(now.Add(wait), wait, -1); v.Failed {
			t.Errorf("%s: after the quarantine %+v", name, v)
		}
	}
	var h health
	h.xid(Event{XID: 95, GI: 3}, XIDQuarantine, true, now)
	h.xid(Event{XID: 500, GI: 4}, XIDQuarantine, false, now)
	if a, b, whole := h.verdict(now, wait, 3), h.verdict(now, wait, 4), h.verdict(now, wait, -1); !a.Failed || b.Failed || whole.Failed {
		t.Errorf("instances: %+v and %+v, the GPU: %+v", a, b, whole)
	}
}
