package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/procfile"
)

// BenchmarkShortTasks starts and finishes `true` with logs, an exit record and an own control group, 16 at a time:
// plain (as raw_exec) and isolated with limits (as exec). tasks/s is the figure to look at.
func BenchmarkShortTasks(b *testing.B) {
	for _, isolated := range []bool{false, true} {
		b.Run(map[bool]string{false: "raw_exec", true: "exec"}[isolated], func(b *testing.B) {
			s := newSup(b)
			var n atomic.Int64
			var wg sync.WaitGroup
			h, err := s.Hello(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			own, children := spent(b, h.PID)
			began := time.Now()
			b.ResetTimer()
			for range 16 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for {
						i := n.Add(1)
						if i > int64(b.N) {
							return
						}
						spec := s.spec(fmt.Sprintf("b%d", i), "")
						spec.Path, spec.Argv = "/bin/true", []string{"true"}
						// A log directory each, as allocations have.
						logs := filepath.Join(s.logs, spec.ID)
						if err := os.Mkdir(logs, 0o755); err != nil {
							b.Error(err)
							return
						}
						spec.Stdout.Base, spec.Stderr.Base = filepath.Join(logs, "out"), filepath.Join(logs, "err")
						if isolated {
							spec.Limits = cgroup.Limits{CPUShares: 100, MemoryBytes: 64 << 20, PidsMax: 100}
							spec.Isolate = &Isolation{TmpDir: s.logs}
							spec.User = &Credential{UID: 65534, GID: 65534}
						}
						if _, err := s.Start(b.Context(), spec); err != nil {
							b.Error(err)
							return
						}
						if e, err := s.Wait(b.Context(), spec.ID); err != nil || e.Code != 0 {
							b.Errorf("%+v, %v; want e.Code = 0", e, err)
							return
						}
						if err := s.Destroy(b.Context(), spec.ID); err != nil {
							b.Error(err)
							return
						}
					}
				}()
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "tasks/s")
			own2, children2 := spent(b, h.PID)
			b.ReportMetric((own2-own)*1e6/float64(b.N), "supervisor-us/task")
			b.ReportMetric((children2-children)*1e6/float64(b.N), "launcher+task-us/task")
		})
	}
}

// BenchmarkStart is the latency of one isolated start on an idle supervisor, from the call to the executed command.
func BenchmarkStart(b *testing.B) {
	s := newSup(b)
	if _, err := s.Hello(b.Context()); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		spec := s.spec(fmt.Sprintf("b%d", n), "")
		spec.Path, spec.Argv = "/bin/true", []string{"true"}
		spec.Stdout.Base, spec.Stderr.Base = filepath.Join(s.logs, "out"), filepath.Join(s.logs, "err")
		spec.Limits = cgroup.Limits{CPUShares: 100, MemoryBytes: 64 << 20, PidsMax: 100}
		spec.Isolate = &Isolation{TmpDir: s.logs}
		spec.User = &Credential{UID: 65534, GID: 65534}
		s.start(spec)
		b.StopTimer()
		if e := s.wait(spec.ID); e.Code != 0 {
			b.Fatalf("%+v; want e.Code = 0", e)
		}
		if err := s.Destroy(b.Context(), spec.ID); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkRunningTask measures the overhead of a running task: its launcher, and its share of the supervisor.
func BenchmarkRunningTask(b *testing.B) {
	s := newSup(b)
	h, err := s.Hello(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	base := pss(b, h.PID)
	const tasks = 200
	var launchers int64
	for i := range tasks {
		spec := s.spec(fmt.Sprintf("r%d", i), "")
		spec.Path, spec.Argv = "/bin/sleep", []string{"sleep", "600"}
		spec.Isolate, spec.User = &Isolation{TmpDir: s.logs}, &Credential{UID: 65534, GID: 65534}
		st := s.start(spec)
		ps, err := procfile.StatOf(st.PID)
		if err != nil {
			b.Fatal(err)
		}
		launchers += pss(b, ps.Parent)
	}
	per := (pss(b, h.PID) - base) / tasks
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", h.PID))
	for b.Loop() {
		if _, err := s.Inspect(b.Context(), "r0"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(launchers)/tasks, "launcher-KiB/task")
	b.ReportMetric(float64(per), "supervisor-KiB/task")
	b.ReportMetric(float64(base), "supervisor-KiB")
	b.ReportMetric(float64(len(threads)), "supervisor-threads")
}

// spent returns the processor time, in seconds, of a process and of the children that it has waited for.
func spent(b *testing.B, pid int) (own, children float64) {
	b.Helper()
	st, err := procfile.StatOf(pid)
	if err != nil {
		b.Fatal(err)
	}
	return st.CPU.Seconds(), st.ChildCPU.Seconds()
}

// pss is a process's proportional set size in KiB.
func pss(b *testing.B, pid int) int64 {
	b.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("no Pss line")
	return 0
}
