package shim

import (
	"os"
	"strconv"
	"strings"
)

// Living detects which processes have ended, although their pids belong to other pid namespaces. It remembers the host
// pid of each, so that a check costs one small read.
type Living struct {
	Proc string // "/proc" when empty
	host map[living]int
}

type living struct {
	pid   int
	start uint64
	ns    uint64
}

// Gone reports whether a process has ended; a zombie counts as ended.
func (l *Living) Gone(p Process) bool {
	k := living{p.PID, p.Start, p.NS}
	if pid, ok := l.host[k]; ok {
		if l.is(pid, k) {
			return false
		}
		delete(l.host, k)
	}
	entries, err := os.ReadDir(l.proc())
	if err != nil {
		return false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !l.is(pid, k) {
			continue
		}
		if l.host == nil || len(l.host) > 1<<14 {
			l.host = map[living]int{}
		}
		l.host[k] = pid
		return false
	}
	return true
}

func (l *Living) proc() string {
	if l.Proc == "" {
		return "/proc"
	}
	return l.Proc
}

// is reports whether a host process is the one in k.
func (l *Living) is(pid int, k living) bool {
	dir := l.proc() + "/" + strconv.Itoa(pid)
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return false
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return false
	}
	if start, err := strconv.ParseUint(f[19], 10, 64); err != nil || k.start != 0 && start != k.start {
		return false
	}
	if f[0] == "X" || f[0] == "Z" && f[17] <= "1" { // a process whose first thread has ended may continue in others
		return false
	}
	if b, err = os.ReadFile(dir + "/status"); err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			ids := strings.Fields(rest)
			return len(ids) > 0 && ids[len(ids)-1] == strconv.Itoa(k.pid)
		}
	}
	return pid == k.pid // a kernel without pid namespaces
}
