package procfile

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Stat is what /proc/PID/stat says of a process (proc_pid_stat(5)).
type Stat struct {
	Name            string // of the program, 15 bytes at most
	State           byte   // 'R' runs, 'S' sleeps, 'Z' has ended and was not waited for, ...
	Parent, Session int
	CPU, ChildCPU   time.Duration // user and system time: of the process, and of the children that it has waited for
	Start           uint64        // in clock ticks since the boot: together with the pid it identifies a process, as pids are reused
	RSS             uint64        // resident memory in bytes
}

// tick is the unit of processor times: USER_HZ is 100 on every architecture that Go supports.
const tick = time.Second / 100

// StatOf reads the stat file of a process.
func StatOf(pid int) (Stat, error) {
	b, err := Of(pid, "stat")
	if err != nil {
		return Stat{}, err
	}
	st, ok := parseStat(string(b))
	if !ok {
		return Stat{}, fmt.Errorf("/proc/%d/stat is unreadable", pid)
	}
	return st, nil
}

// parseStat parses a stat file. A name may contain anything, parentheses and spaces too.
func parseStat(s string) (st Stat, ok bool) {
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return Stat{}, false
	}
	f := strings.Fields(s[end+1:])
	if len(f) < 22 || len(f[0]) != 1 {
		return Stat{}, false
	}
	ok = true
	number := func(i int) uint64 {
		n, err := strconv.ParseInt(f[i], 10, 64)
		ok = ok && err == nil
		return uint64(n)
	}
	st = Stat{Name: s[open+1 : end], State: f[0][0], Parent: int(number(1)), Session: int(number(3)),
		CPU: time.Duration(number(11)+number(12)) * tick, ChildCPU: time.Duration(number(13)+number(14)) * tick,
		Start: number(19), RSS: number(21) * uint64(os.Getpagesize())}
	return st, ok
}
