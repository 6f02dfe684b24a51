package supervisor

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// call is a struct seccomp_data, as far as a filter of ours looks.
type call struct {
	nr, arch uint32
	args     [2]uint32
}

// judge runs a filter and returns its answer and the number of steps.
func judge(t *testing.T, prog []byte, c call) (answer uint32, steps int) {
	t.Helper()
	words := map[uint32]uint32{dataNr: c.nr, dataArch: c.arch, dataArgs: c.args[0], dataArgs + 8: c.args[1]}
	var acc uint32
	for pc := 0; pc*8 < len(prog); steps++ {
		in := prog[pc*8:]
		code, jt, jf, k := binary.LittleEndian.Uint16(in), in[2], in[3], binary.LittleEndian.Uint32(in[4:])
		pc++
		test := false
		switch code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = words[k]
			continue
		case unix.BPF_RET | unix.BPF_K:
			return k, steps
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			test = acc == k
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			test = acc >= k
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			test = acc&k != 0
		default:
			t.Fatalf("step %d has the code %#x", pc-1, code)
		}
		if test {
			pc += int(jt)
		} else {
			pc += int(jf)
		}
	}
	t.Fatal("the program ends without an answer")
	return 0, 0
}

// wanted says, call by call and as the lists say it, what a filter must answer.
func wanted(caps uint64, c call) uint32 {
	no := func(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }
	if c.arch != seccompArch || c.nr > seccompNewest {
		return no(unix.ENOSYS)
	}
	for _, d := range slices.Concat(denials, denialsOfArch) {
		if d.nr == c.nr && d.caps&caps == 0 {
			return no(d.errn)
		}
	}
	admin := caps&capSysAdmin != 0
	switch {
	case c.nr == unix.SYS_SOCKET && c.args[0] == unix.AF_VSOCK:
		return no(unix.EAFNOSUPPORT)
	case c.nr == unix.SYS_CLONE && c.args[0]&cloneNamespaces != 0 && !admin:
		return no(unix.EPERM)
	case c.nr == unix.SYS_IOCTL && (c.args[1] == unix.TIOCSTI || c.args[1] == tiocLinux) && !admin:
		return no(unix.EPERM)
	}
	return unix.SECCOMP_RET_ALLOW
}

// TestFilter compares the filter of system calls with the lists that it is made from, for every number and all
// capabilities, and counts what it takes: the kernel asks it for every number when a task begins.
func TestFilter(t *testing.T) {
	if seccompArch == 0 {
		t.Skip("does not apply here: no filter for this architecture")
	}
	caps := []uint64{0, ^uint64(0), capSysAdmin, ^uint64(capSysAdmin)}
	for i := range 41 {
		caps = append(caps, 1<<i)
	}
	args := [][2]uint32{{}, {unix.AF_VSOCK}, {unix.AF_UNIX}, {cloneNamespaces & -cloneNamespaces}, {uint32(unix.SIGCHLD)}, {0, unix.TIOCSTI}, {0, tiocLinux}, {0, unix.TCGETS}}
	for _, have := range caps {
		prog := makeFilter(have)
		total, allowed := 0, 0
		check := func(c call) {
			got, steps := judge(t, prog, c)
			if want := wanted(have, c); got != want {
				t.Fatalf("capabilities %#x, call %+v: answer %#x, want %#x", have, c, got, want)
			}
			total += steps
			allowed++
		}
		for nr := range uint32(seccompNewest + 64) {
			check(call{nr: nr, arch: seccompArch})
		}
		if most := 12 * allowed; total > most {
			t.Errorf("capabilities %#x: %d steps for %d numbers, want at most %d", have, total, allowed, most)
		}
		for _, a := range args {
			for _, nr := range []uint32{unix.SYS_SOCKET, unix.SYS_CLONE, unix.SYS_IOCTL, unix.SYS_READ, 1 << 30, 1<<30 | unix.SYS_MOUNT, ^uint32(0)} {
				for _, arch := range []uint32{seccompArch, unix.AUDIT_ARCH_I386, 0} {
					check(call{nr, arch, a})
				}
			}
		}
	}
	if string(seccompFilter(0)) != string(makeFilter(0)) || string(seccompFilter(0)) != string(seccompFilter(0)) {
		t.Error("two programs of the same capabilities differ")
	}
}
