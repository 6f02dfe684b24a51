// Package gpu finds the node's GPUs, monitors their health, and measures what processes use of them.
//
// The vendor's library is never loaded into the agent: a missing function ends a process on the spot, and a driver that
// hangs blocks its caller. NVML therefore runs in a child process of the same program (`muster gpu-probe`), which
// NVIDIA, the agent's side, queries over a pipe:
//
//	agent                                          child
//	request {id, op} --- length, JSON --->  stdin   one at a time, each call looked up first
//	reply   {id, ...} <-- length, JSON ---  stdout  and, unasked, event {GPU, XID}, stuck {call}
//
// The agent's side never waits for the driver: it returns its last results. A child that dies, or does not answer in
// time, is replaced with growing pauses. When there has been no answer for a while, the devices are unhealthy and say
// why, until there is one again.
//
// Goroutines: of NVIDIA, run (its loop) and the reader of the kernel's log, both ended by Close, one reader per child
// (ended by the child's end) and one waiter per child (ended when the kernel lets the child go); of the child, the
// requests' (main), the reader of its standard input, which ends the process when the agent is gone, the watchdog and
// the waiter for events.
package gpu

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
)

// Snapshot holds what does not change from second to second.
type Snapshot struct {
	Driver string // "580.159.04"
	CUDA   string // "13.0": the newest that the driver supports
	NVML   string
	GPUs   []Device
	Lost   int      // devices counted that could not be opened
	Absent []string // optional functions that the driver lacks, sorted
	Dmem   bool     // the driver can limit the memory of a control group

	Confidential bool // confidential computing is on

	Enforce []string `json:",omitempty"` // what enforces shares for tasks, the strongest first; added by the agent
}

// Device is one GPU.
type Device struct {
	UUID, Name, Serial string
	BoardPart          string
	Bus                string // "00000000:18:00.0"
	Minor              int64  // N of /dev/nvidiaN, -1 unknown
	Index              int64  // changes from boot to boot
	MemoryBytes        int64  // 0: shares the machine's
	ReservedBytes      int64  // used by driver and firmware
	BAR1Bytes          int64
	ComputeCapability  string // "9.0"
	Architecture       string // "hopper"
	Brand              string
	NUMANode           int64 // -1: unknown
	PCIeGeneration     int64
	PCIeWidth          int64
	PowerLimitMW       int64 // in force
	PowerMinMW         int64 // limits of the power limit
	PowerMaxMW         int64
	SlowdownC          int64 // temperature at which it throttles; 0: unknown
	ShutdownC          int64
	CPUs               string // near it: "0-15,32-47"; "" unknown
	ClockMHz           int64  // largest of the SMs
	MemoryClockMHz     int64
	Display            string // "Enabled", "Disabled", "" unknown
	Persistence        string
	ECC                string
	ComputeMode        string // "default", "exclusive_process", "prohibited"
	Accounting         string
	Virtualization     string // "none", "passthrough", "vgpu"
	MIGMode            string // "Enabled", "Disabled", "" without MIG support
	Links              []Link
	Peers              []Peer // the other GPUs
	NVLinkVersion      int64  // as NVML numbers it
	Fabric             string // cluster and clique of a fabric across machines; "" for none
	MIG                []MIG
	Profiles           []MIGProfile // of its possible instances; only in MIG mode
}

// Link is a set of active NVLinks to one other end.
type Link struct {
	Bus    string // of the other end
	Switch bool
	Count  int
}

// Peer is another GPU of the machine, relative to one.
type Peer struct {
	Bus    string
	Level  int64 // where they are connected: 0 one board, 10 one PCIe switch, 20 several, 30 host bridge, 40 NUMA node, 50 system; -1 unknown
	Read   bool  // can read the other's memory directly
	NVLink bool
}

// MIG is one instance of a GPU in MIG mode.
type MIG struct {
	UUID, Profile string // "1g.10gb"
	GI, CI        int64
	MemoryBytes   int64
	Slices, SMs   int64
	Start, Size   int64 // its memory slots; Size 0: not reported
}

// MIGProfile is a kind of instance that a GPU may be divided into.
type MIGProfile struct {
	Name        string // "1g.10gb"
	ID          int64
	Slices      int64
	Size        int64 // memory slots
	MemoryBytes int64
	Max         int64
	Starts      []int64
}

// Sample is the current state of a GPU.
type Sample struct {
	UUID            string
	Lost            bool
	MIGMode         string
	MIGs            int // instances
	UsedBytes       int64
	FreeBytes       int64
	TotalBytes      int64
	UtilPercent     int64 // -1: unknown
	MemUtilPercent  int64 // -1: unknown
	TemperatureC    int64 // -1: unknown
	PowerMW         int64 // -1: unknown
	EnergyMJ        int64 // since the driver was loaded; -1: unknown
	ECCUncorrected  int64 // since the driver was loaded
	ECCCorrected    int64
	Throttle        int64 // reasons, as NVML's bits
	ECCAggregate    int64 // uncorrected, in the GPU's life; -1: unknown
	ECCFixedAggr    int64 // corrected
	RowsFixed       int64 // memory rows remapped for corrected errors; -1: unknown
	RowsBad         int64 // for uncorrected errors
	Wires           *Wires
	Active          *Activity  `json:",omitempty"` // of GPUs that report it, from the second measurement
	Parts           []Activity `json:",omitempty"` // of MIG instances
	Recovery        int64      // the action that the driver asks for: 0 none, 1 GPU reset, 2 reboot, 3 drain P2P, 4 drain and reset ...
	RowsPending     bool
	RowsFailed      bool
	PagesPending    bool  // memory pages wait to be retired, before Ampere
	PCIeGeneration  int64 // current; lower while the GPU idles
	PCIeWidth       int64
	Processes       []Process
	ProcessesFailed string // why the list is unreliable, or ""
}

// Process is one process's use of a GPU.
type Process struct {
	PID    int
	Bytes  int64 // -1: not reported
	GI, CI int64 // of the MIG instance; -1 for none
	SM     int64 // percent of the multiprocessors since the last sample; -1: not reported
}

// Event is an unrequested report of the driver.
type Event struct {
	UUID string // "" is some GPU
	XID  int64  // 0: it was lost
	GI   int64  // -1: the whole GPU
	PID  int    // of the process that caused it, which only the kernel's log names; 0: unknown
}

type request struct {
	ID uint64
	Op string // "static", "dynamic", "limit", "limits", "power"

	// Of "limit" and "limits":
	UUID, Group string // GPU, and the directory of a control group
	Bytes       int64  // limit of the group; -1: no limit

	MW int64 // for "power": the limit to set, milliwatts; 0: only read

	Wires bool // for "dynamic": include the links
}

// MemoryLimit is the driver's state of a control group on one GPU.
type MemoryLimit struct {
	Bytes     int64 // -1: no limit
	UsedBytes int64
}

type message struct {
	ID      uint64 // of the request; 0 for unrequested messages
	Hello   bool   `json:",omitempty"` // the library is loaded and initialized
	Err     string `json:",omitempty"`
	Missing bool   `json:",omitempty"` // Err means that there is no driver library
	Static  *Snapshot
	Dynamic []Sample
	Event   *Event
	Limit   *MemoryLimit
	PowerMW int64  `json:",omitempty"` // the current power limit
	Stuck   string `json:",omitempty"` // a call that has not returned for a while
}

// messageMax limits a message: 64 GPUs with 1,000 processes each take half of it.
const messageMax = 8 << 20

func writeMessage(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > messageMax {
		return fmt.Errorf("message of %d bytes, the limit is %d", len(b), messageMax)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readMessage(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > messageMax {
		return fmt.Errorf("message of %d bytes, the limit is %d", n, messageMax)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// canRun records that MaybeRun was called: only then does this program, started again, become the child.
var canRun atomic.Bool

// CanRun reports whether this program can be its own child: its main calls MaybeRun. Test programs often do not.
func CanRun() bool { return canRun.Load() }

// verb is the hidden command of the child.
const verb = "gpu-probe"
