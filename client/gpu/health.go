package gpu

import (
	"fmt"
	"time"

	"github.com/muster-sched/muster/structs"
)

// State is the health of a GPU.
//
//	healthy -> degraded      rows wait to be remapped, an error was contained, it is slowed down by heat or power, an NVLink is
//	                         down, or NVLink or PCIe has errors again and again: work continues
//	        -> quarantined   error event, uncorrected memory errors, the driver asks for a reset: no new work
//	        -> lost          fell off the bus
//
// A quarantine ends when the driver asks for nothing and nothing new has happened for a while; degraded and lost end
// when their cause does.
type State string

// States.
const (
	Healthy     State = "healthy"
	Degraded    State = "degraded"
	Quarantined State = "quarantined"
	Lost        State = "lost"
)

// Verdict is a state and its reason, "" for healthy.
type Verdict struct {
	State  State
	Reason string
	Failed bool // structs.DeviceInstance.Failed
}

// recoveries are the actions that a driver asks for, by its number.
var recoveries = map[int64]string{1: "a GPU reset", 2: "a reboot of the node", 3: "draining its peers", 4: "draining and a reset", 5: "recovery of IMEX", 6: "a bus reset", 7: "a system reboot"}

// health is the history of one GPU. The caller provides the clock.
type health struct {
	sampled bool
	ecc     int64 // uncorrected errors at the last measurement
	bad     string
	badAt   time.Time
	failed  bool // bad is a fault of the GPU that no program can have caused
	soft    string
	softAt  time.Time
	badOf   map[int64]string // MIG instances with their own error, by GI
	badOfAt map[int64]time.Time
	failOf  map[int64]bool // as failed
	wiring  wiring
	hot     int // consecutive samples in which the hardware slowed it down
	current Sample
}

// Bits of NVML for a slowdown by the hardware, as opposed to a configured one such as a power limit.
const (
	throttleThermal = 0x40
	throttleBrake   = 0x80
	throttleLooks   = 3 // consecutive samples: a short slowdown is not a fault
)

func (h *health) slowed(s Sample, now time.Time) {
	if s.Throttle&(throttleThermal|throttleBrake) == 0 || s.Lost {
		h.hot = 0
		return
	}
	if h.hot++; h.hot < throttleLooks {
		return
	}
	why := "it is too hot"
	if s.Throttle&throttleThermal == 0 {
		why = "its power supply asks for it"
	}
	h.soft, h.softAt = "its hardware slows it down: "+why, now
}

// xid records an error event, and whether no program can have caused it; the result is whether it counts as the device's fault.
func (h *health) xid(e Event, act XIDAction, failed bool, now time.Time) bool {
	switch {
	case e.XID == 0 || act == XIDProgram || act == XIDIgnore:
		return false
	case act == XIDDegrade:
		h.soft, h.softAt = xidText(e.XID), now
	case e.GI >= 0:
		if h.badOf == nil {
			h.badOf, h.badOfAt, h.failOf = map[int64]string{}, map[int64]time.Time{}, map[int64]bool{}
		}
		h.badOf[e.GI], h.badOfAt[e.GI], h.failOf[e.GI] = xidText(e.XID), now, h.failOf[e.GI] || failed
	default:
		h.bad, h.badAt, h.failed = xidText(e.XID), now, h.failed || failed
	}
	return true
}

// sample records a measurement.
func (h *health) sample(s Sample, now time.Time) {
	if h.sampled && s.ECCUncorrected > h.ecc && !s.Lost {
		h.bad, h.badAt, h.failed = fmt.Sprintf("%d new uncorrected memory errors", s.ECCUncorrected-h.ecc), now, true
	}
	if !s.Lost {
		h.ecc, h.sampled = s.ECCUncorrected, true
	}
	h.slowed(s, now)
	h.current = s
}

// verdict returns the health of the GPU, or of its MIG instance gi (-1: the whole GPU).
func (h *health) verdict(now time.Time, recoverAfter time.Duration, gi int64) Verdict {
	s := h.current
	if s.Lost {
		return Verdict{Lost, "the GPU is lost: it does not answer any more (reset it or reboot the node)", true}
	}
	if s.Recovery != 0 {
		h.badAt = now // the wait begins when the driver asks for nothing any more
		what := recoveries[s.Recovery]
		if what == "" {
			what = fmt.Sprintf("recovery action %d", s.Recovery)
		}
		r := "the driver asks for " + what
		if h.bad != "" {
			r = h.bad + "; " + r
		} else {
			h.bad = r
		}
		return Verdict{Quarantined, r, h.failed}
	}
	if s.RowsFailed {
		return Verdict{Quarantined, "remapping a memory row failed: replace the GPU", true}
	}
	if h.bad != "" {
		if now.Sub(h.badAt) < recoverAfter {
			return Verdict{Quarantined, h.bad, h.failed}
		}
		h.bad, h.failed = "", false
	}
	if bad, ok := h.badOf[gi]; ok {
		if now.Sub(h.badOfAt[gi]) < recoverAfter {
			return Verdict{Quarantined, bad, h.failOf[gi]}
		}
		delete(h.badOf, gi)
		delete(h.failOf, gi)
	}
	if s.RowsPending {
		return Verdict{State: Degraded, Reason: "a memory row waits to be remapped at the next reset"}
	}
	if s.PagesPending {
		return Verdict{State: Degraded, Reason: "a memory page waits to be retired at the next reset"}
	}
	if d := h.wiring.down(); d != "" && s.MIGMode != "Enabled" {
		return Verdict{State: Degraded, Reason: d}
	}
	if h.soft != "" {
		if now.Sub(h.softAt) < recoverAfter {
			return Verdict{State: Degraded, Reason: h.soft}
		}
		h.soft = ""
	}
	return Verdict{State: Healthy}
}

// Report is an error that the driver has reported.
type Report struct {
	Devices []string // the GPU, or the affected MIG instances
	XID     int64
	Text    string // "XID 31 (...)"
	Device  bool   // the fault of the device, not of a program

	// The task whose process caused it; zero where that is not known, or the process belongs to no task.
	Alloc structs.AllocID
	Task  string
}

// report says which devices an error affects. The caller holds mu.
func (n *NVIDIA) report(e Event, device bool) Report {
	r := Report{Devices: []string{e.UUID}, XID: e.XID, Text: xidText(e.XID), Device: device}
	if e.PID > 0 && !device {
		r.Alloc, r.Task, _ = n.cfg.Owner(e.PID)
	}
	if n.snapshot == nil {
		return r
	}
	for _, g := range n.snapshot.GPUs {
		for _, m := range g.MIG {
			if g.UUID == e.UUID && (e.GI < 0 || e.GI == m.GI) {
				r.Devices = append(r.Devices, m.UUID)
			}
		}
	}
	return r
}
