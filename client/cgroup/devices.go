package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/procfile"
)

// A DeviceRule allows access to device nodes. The kernel refuses everything that no rule allows with EPERM, independent
// of the file's permissions.
type DeviceRule struct {
	Block  bool   // block device, else character device
	Major  int64  // -1: any
	Minor  int64  // -1: any
	Access string // of "r", "w", "m" (mknod)
}

// AnyDevice matches every major or minor number.
const AnyDevice int64 = -1

// DevicesStandard returns the devices that every program may expect: null, zero, full, random, urandom, tty, console,
// ptmx, pseudo terminals, and creating (not opening) any node.
func DevicesStandard() []DeviceRule {
	out := []DeviceRule{{Major: AnyDevice, Minor: AnyDevice, Access: "m"}, {Block: true, Major: AnyDevice, Minor: AnyDevice, Access: "m"}}
	for _, d := range [][2]int64{{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 1}, {5, 2}, {136, AnyDevice}} {
		out = append(out, DeviceRule{Major: d[0], Minor: d[1], Access: "rwm"})
	}
	return out
}

// String formats the rule for the version 1 controller.
func (r DeviceRule) String() string {
	num := func(n int64) string {
		if n == AnyDevice {
			return "*"
		}
		return strconv.FormatInt(n, 10)
	}
	kind := "c"
	if r.Block {
		kind = "b"
	}
	return kind + " " + num(r.Major) + ":" + num(r.Minor) + " " + r.Access
}

// How device access is restricted on a machine.
const (
	DevicesByBPF  = "bpf" // a program on the cgroup2 leaf
	DevicesByV1   = "v1"  // the version 1 controller
	DevicesByNone = "none"
)

// Devices returns how this machine restricts devices: DevicesByBPF, DevicesByV1 or DevicesByNone.
func (m *Manager) Devices() string {
	m.once.Do(func() {
		m.devices = DevicesByNone
		if m.Layout.V2 != "" {
			// Only an attempt shows it: the kernel may lack the hook, a sandbox may forbid it.
			if dir, err := os.MkdirTemp(m.dir(m.Layout.V2), ".devices-"); err == nil {
				if m.filterBPF(dir, DevicesStandard()) == nil {
					m.devices = DevicesByBPF
				}
				os.Remove(dir)
			}
		}
		if m.devices == DevicesByNone && m.Layout.V1["devices"] != "" {
			if os.MkdirAll(m.dir(m.Layout.V1["devices"]), 0o755) == nil {
				m.devices = DevicesByV1
			}
		}
	})
	return m.devices
}

// filter restricts a new group to what the rules allow.
func (m *Manager) filter(g *Group, id string, rules []DeviceRule) error {
	switch m.Devices() {
	case DevicesByBPF:
		return m.filterBPF(g.Main, rules)
	case DevicesByV1:
		dir := filepath.Join(m.dir(m.Layout.V1["devices"]), id)
		if err := mkdir(dir); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
		g.V1["devices"] = dir
		// Deny everything first: an exception to a denied wildcard would not count.
		if err := procfile.Write(filepath.Join(dir, "devices.deny"), "a"); err != nil {
			return fmt.Errorf("restrict devices: %w", err)
		}
		for _, r := range rules {
			if err := procfile.Write(filepath.Join(dir, "devices.allow"), r.String()); err != nil {
				return fmt.Errorf("allow device %s: %w", r, err)
			}
		}
		return nil
	}
	return errors.New("restrict devices: neither cgroup2 device programs nor the version 1 controller work on this machine")
}

// Bits of the access that a program of type BPF_PROG_TYPE_CGROUP_DEVICE is asked about (linux/bpf.h): the device's type
// in the lower 16 bits of access_type, the access in the upper ones.
const (
	bpfDevBlock, bpfDevChar            = 1, 2
	bpfAccMknod, bpfAccRead, bpfAccWrt = 1, 2, 4
)

// filterBPF attaches a program to a cgroup2 directory. It stays until the group is removed. Programs of parent groups
// stay in force, so that a group cannot get more than its parents.
func (m *Manager) filterBPF(dir string, rules []DeviceRule) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := keyOf(rules)
	p := m.program[key]
	if p == nil {
		var err error
		if p, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupDevice, Instructions: deviceProgram(rules), License: "Apache-2.0"}); err != nil {
			return fmt.Errorf("restrict devices: load program: %w", err)
		}
		if len(m.program) >= programsKept {
			m.forgetProgramsLocked()
		}
		if m.program == nil {
			m.program = map[string]*ebpf.Program{}
		}
		m.program[key] = p
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("restrict devices: open control group: %w", err)
	}
	defer unix.Close(fd)
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: fd, Program: p, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI}); err != nil {
		return fmt.Errorf("restrict devices: attach program: %w", err)
	}
	return nil
}

// keyOf returns a text that is the same for the same rules. It is asked for at each start, and formatting them takes longer than
// attaching the program.
func keyOf(rules []DeviceRule) string {
	b := make([]byte, 0, 256)
	for _, r := range rules {
		b = binary.AppendVarint(binary.AppendVarint(strconv.AppendBool(b, r.Block), r.Major), r.Minor)
		b = append(append(b, r.Access...), '\n')
	}
	return string(b)
}

// programsKept is how many loaded programs are cached: most tasks have equal rules, and loading takes longer than
// attaching.
const programsKept = 32

func (m *Manager) forgetPrograms() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetProgramsLocked()
}

func (m *Manager) forgetProgramsLocked() {
	for _, p := range m.program {
		p.Close() // an attached program stays in force
	}
	clear(m.program)
}

// deviceProgram allows what one of the rules allows: the context is {access_type, major, minor}, 32 bits each; the
// answer 1 allows.
func deviceProgram(rules []DeviceRule) asm.Instructions {
	out := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // type
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.And.Imm(asm.R2, 0xffff),
		asm.RSh.Imm(asm.R3, 16),                  // access
		asm.LoadMem(asm.R4, asm.R1, 4, asm.Word), // major
		asm.LoadMem(asm.R5, asm.R1, 8, asm.Word), // minor
	}
	for i, r := range rules {
		next := "rule" + strconv.Itoa(i+1)
		var body asm.Instructions
		kind := int32(bpfDevChar)
		if r.Block {
			kind = bpfDevBlock
		}
		body = append(body, asm.JNE.Imm(asm.R2, kind, next))
		var access int32
		for _, c := range r.Access {
			access |= map[rune]int32{'m': bpfAccMknod, 'r': bpfAccRead, 'w': bpfAccWrt}[c]
		}
		// The access must not exceed the rule's.
		body = append(body, asm.Mov.Reg(asm.R6, asm.R3), asm.And.Imm(asm.R6, ^access), asm.JNE.Imm(asm.R6, 0, next))
		if r.Major != AnyDevice {
			body = append(body, asm.JNE.Imm(asm.R4, int32(r.Major), next))
		}
		if r.Minor != AnyDevice {
			body = append(body, asm.JNE.Imm(asm.R5, int32(r.Minor), next))
		}
		body = append(body, asm.Mov.Imm(asm.R0, 1), asm.Return())
		body[0] = body[0].WithSymbol("rule" + strconv.Itoa(i))
		out = append(out, body...)
	}
	return append(out, asm.Mov.Imm(asm.R0, 0).WithSymbol("rule"+strconv.Itoa(len(rules))), asm.Return())
}
