package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// TestNeverHasOneSource: where a job asks for GPUs that no node has, no command says that an allocation's end would help, and
// all commands say so in the same way.
func TestNeverHasOneSource(t *testing.T) {
	r := structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionGPU}, Nodes: 2, Short: 3, Unit: structs.UnitDevices, CuredBy: structs.EventAllocStopped}
	m := &wire.AllocationMetric{NodesInPool: 2, NodesEvaluated: 2, Refusals: []wire.Refusal{wire.RefusalFromStructs(r)}}
	open, never := strings.Join(metricLines(m, ""), "\n"), strings.Join(metricLines(m, "no node has 9 GPUs"), "\n")
	if want := "waits until " + cure(r); !strings.Contains(open, want) || strings.Contains(never, "it fits if") || cureOf(r, true) != "" {
		t.Errorf("%q and, for a job that never fits, %q; want %q in the first only", open, never, want)
	}
}

// TestRawExecSaysHow: a driver that is off by default says how it is turned on.
func TestRawExecSaysHow(t *testing.T) {
	r := structs.Refusal{Code: structs.ReasonDriver, Obstacle: structs.Obstacle{Dimension: structs.DimensionMissingDriver, Subject: "raw_exec"}, Nodes: 2, CuredBy: structs.EventNodeJoined}
	if got := cure(r); !strings.Contains(got, `plugin "raw_exec" { config { enabled = true } }`) {
		t.Errorf("%q", got)
	}
	if r.Subject = "docker"; strings.Contains(cure(r), "plugin") {
		t.Errorf("%q", cure(r))
	}
}

// TestBecause: the reason of a failure is what failed, not that there is no further attempt.
func TestBecause(t *testing.T) {
	a := &wire.AllocationListStub{ClientStatus: "failed", TaskStates: map[string]*wire.TaskState{"main": {Failed: true, Events: []*wire.TaskEvent{
		{Type: "Driver Failure", DisplayMessage: "exec: no such file /bin/nothing"}, {Type: "Not Restarting", DisplayMessage: "Error was unrecoverable"}}}}}
	if got := (&progress{}).because(a); got != `: task "main": exec: no such file /bin/nothing` {
		t.Errorf("%q", got)
	}
	a.TaskStates["main"].Events = a.TaskStates["main"].Events[1:]
	if got := (&progress{}).because(a); got != `: task "main": Error was unrecoverable` {
		t.Errorf("%q", got)
	}
}

// TestQuotaRows: no limit is "unlimited", nothing allowed is 0, and the soft limit is shown.
func TestQuotaRows(t *testing.T) {
	l := &wire.QuotaLimit{Region: "global", RegionLimit: &wire.QuotaResources{CPU: ptr(0), MemoryMB: ptr(-1)},
		Soft: &wire.QuotaResources{CPU: ptr(500), Devices: []*wire.QuotaDevice{{Name: "nvidia/gpu", Count: ptr(uint64(4))}}}}
	var got []string
	for _, r := range quotaRows(l, &wire.QuotaResources{CPU: ptr(7)}) {
		got = append(got, strings.Join(r[1:], " "))
	}
	want := "CPU (MHz) 7 unlimited 500|Memory (MiB) 0 0 unlimited|GPU memory (MiB) 0 unlimited unlimited|GPUs 0 unlimited 4"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("%s\nwant %s", s, want)
	}
}

// TestTLSHints: a wrong scheme and an unknown CA say which variable to set.
func TestTLSHints(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("[]")) })
	secure, plain := httptest.NewTLSServer(handler), httptest.NewServer(handler)
	defer secure.Close()
	defer plain.Close()
	for _, c := range []struct{ addr, want string }{
		{"http://" + secure.Listener.Addr().String(), "MUSTER_ADDR=https://" + secure.Listener.Addr().String() + " and MUSTER_CACERT"},
		{secure.URL, "set MUSTER_CACERT"},
		{"https://" + plain.Listener.Addr().String(), "MUSTER_ADDR=http://"},
	} {
		if r := (&agentFake{Server: plain}).run(t, "", "node", "status", "-address", c.addr); r.code == 0 || !strings.Contains(r.errOut, c.want) {
			t.Errorf("%s: %d, %q; want %q in it", c.addr, r.code, r.errOut, c.want)
		}
	}
}
