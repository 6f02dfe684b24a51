//go:build e2e

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
)

const gib = 1024 // MiB

// TestQuotas is about shares of GPU memory and what holds them, on one node with eight GPUs.
func TestQuotas(t *testing.T) {
	all := newMachine(t, "8xH100")
	all.edit(func(s *fakegpu.State) { s.Context = 0 }) // shares are counted to the byte
	run := func(name string, f func(t *testing.T, m *machine)) {
		t.Run(name, func(t *testing.T) { f(t, all.at(t)) })
	}

	run("three shares on one GPU, a larger one elsewhere", func(t *testing.T, m *machine) {
		m.run("one", share("20GiB"), holds(19*gib))
		first, backend, a := m.gpuOf("one", "running")
		if backend != "shim" {
			t.Errorf("the share is enforced by %q", backend)
		}
		m.run("two", share("20GiB"), holds(20*gib))
		m.run("three", share("20GiB"), holds(24*gib))
		for _, job := range []string{"two", "three"} {
			if g, _, _ := m.gpuOf(job, "running"); g != first {
				t.Errorf("%s is on GPU %s, the first on %s", job, g, first)
			}
		}
		m.run("four", share("30GiB"), holds(1*gib))
		if g, _, _ := m.gpuOf("four", "running"); g == first {
			t.Error("a share of 30 GiB is on a GPU that has less left")
		}
		// A program sees its share; when it asks for more, the request is refused and the program continues.
		m.says("one", "the GPU has 20480 MiB, 20480 MiB are free")
		m.says("two", "holding 20480 MiB")
		m.says("three", "CUDA_ERROR_OUT_OF_MEMORY after 20480 MiB")
		m.gpuOf("three", "running")
		m.event("two", "GPU Memory Pressure", "20480 of 20480 MiB")
		harness.Eventually(t, 20*time.Second, "alloc status tells the use", func() (bool, string) {
			out, err := m.muster("alloc", "status", a.ID)
			return err == nil && strings.Contains(out, "enforced by shim") && strings.Contains(out, "19456 / 20480 MiB"), out
		})
		m.stop("one", "two", "three", "four")
	})

	run("whole GPUs and shares keep apart", func(t *testing.T, m *machine) {
		m.run("shared", share("10GiB"), holds(1))
		s, _, _ := m.gpuOf("shared", "running")
		m.run("whole", "gpu {\n count = 7\n}", "exec sleep 600")
		harness.Eventually(t, 20*time.Second, "the whole ones are placed", func() (bool, string) {
			as, err := m.api.Allocs("whole")
			return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(as, err)
		})
		m.run("eighth", "gpu {\n count = 1\n}", "exec sleep 600")
		m.waits("eighth", "GPU")
		m.run("beside", share("10GiB"), holds(1))
		if g, _, _ := m.gpuOf("beside", "running"); g != s {
			t.Errorf("a share is on GPU %s, which is given out whole; the shared one is %s", g, s)
		}
		m.stop("shared", "whole", "beside", "eighth")
	})

	run("memory of the dead is waited for", func(t *testing.T, m *machine) {
		m.edit(func(s *fakegpu.State) {
			for i := range s.GPUs {
				s.Procs = append(s.Procs, fakegpu.Proc{UUID: s.GPUs[i].UUID, PID: 1 << 29, Bytes: 700 << 20})
			}
		})
		m.run("next", "gpu {\n count = 1\n}", "exec sleep 600")
		m.event("next", "GPU Memory Held", "700 MiB of process 536870912, which is dead")
		if as, err := m.api.Allocs("next"); err != nil || harness.Count(as, "running") != 0 {
			t.Errorf("it runs beside what has ended: %v %v", as, err)
		}
		m.edit(func(s *fakegpu.State) { s.Procs = nil })
		harness.Eventually(t, 20*time.Second, "the start", func() (bool, string) {
			as, err := m.api.Allocs("next")
			return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(as, err)
		})
		m.stop("next")
	})

	run("more than is there is not placed", func(t *testing.T, m *machine) {
		m.run("huge", share("90GiB"), holds(1))
		m.waits("huge", "GPU")
	})

	// Backends by strength: what this node does not have is waited for, never replaced by something weaker.
	for _, c := range []struct{ enforce, backend string }{
		{"auto", "shim"}, {"soft", "shim"}, {"shim", "shim"}, {"watch", "watch"}, {"none", "none"},
		{"hard", ""}, {"driver", ""}, {"dmem", ""}, {"mig", ""},
	} {
		run("enforce "+c.enforce, func(t *testing.T, m *machine) {
			job := "enforce-" + c.enforce
			m.run(job, share("10GiB", "enforce = "+strconv.Quote(c.enforce)), holds(1*gib))
			if c.backend == "" {
				m.waits(job, c.enforce)
			} else if _, b, _ := m.gpuOf(job, "running"); b != c.backend {
				t.Errorf("it became %q", b)
			}
			m.stop(job)
		})
	}

	run("enforce mps is refused", func(t *testing.T, m *machine) {
		if out, err := m.submit("enforce-mps", share("10GiB", `enforce = "mps"`), holds(1*gib)); err == nil || !strings.Contains(out, `write "soft"`) {
			t.Errorf("job run: %v\n%s", err, out)
		}
	})

	run("none lets everything pass", func(t *testing.T, m *machine) {
		m.run("free", share("10GiB", `enforce = "none"`), holds(30*gib))
		m.says("free", "holding 30720 MiB")
		time.Sleep(4 * time.Second) // long enough for several looks
		m.gpuOf("free", "running")
		m.stop("free")
	})

	run("watch kills who takes more, and nobody else", func(t *testing.T, m *machine) {
		m.run("modest", share("20GiB", `enforce = "watch"`), holds(19*gib))
		g, _, _ := m.gpuOf("modest", "running")
		m.run("greedy", share("20GiB", `enforce = "watch"`), holds(35*gib))
		if h, _, _ := m.gpuOf("greedy", "failed"); h != g {
			t.Errorf("the greedy one was on GPU %s, the other on %s", h, g)
		}
		m.event("greedy", "GPU Memory Exceeded", "its share is 20480 MiB")
		m.gpuOf("modest", "running")
		m.stop("modest")
	})

	for _, c := range []struct{ name, how string }{
		{"linked", "@/linked-user linked"}, {"dlsym", "@/gpu-user dlsym"}, {"RTLD_DEEPBIND", "@/gpu-user deepbind"}, {"cuGetProcAddress", "@/gpu-user proc"}, {"per-thread streams", "@/gpu-user ptsz"},
	} {
		run("a program finds the driver by "+c.name, func(t *testing.T, m *machine) {
			job := "finds-" + strings.ReplaceAll(c.name, " ", "-")
			m.run(job, share("2GiB"), command("(echo init; echo ctx 0; echo fill $((512<<20)); echo free; echo async $((512<<20)); echo alloc 1; sleep 600) | "+c.how))
			m.says(job, "2 4\n0\n0\n2")
			m.stop(job)
		})
	}

	run("six processes race for exactly the share", func(t *testing.T, m *machine) {
		m.run("race", share("512MiB"), `
for i in 1 2 3 4 5 6; do
  (echo init; echo ctx 0; echo race 2 30 $((1<<20)); sleep 600) | @/gpu-user proc > $NOMAD_TASK_DIR/out.$i &
done
for n in $(seq 100); do # not so often that looking takes the processor from those who race
  got=$(cat $NOMAD_TASK_DIR/out.* | awk 'length($1) > 6 || NF == 1 && $1 > 100 {n++} END {print n+0}')
  [ "$got" = 6 ] && break
  sleep 0.5
done
(echo init; echo ctx 0; echo fill $((1<<20)); sleep 600) | @/gpu-user linked > $NOMAD_TASK_DIR/rest &
sleep 1
sum=$(cat $NOMAD_TASK_DIR/out.* | awk '$1 > 1000 {s += $1} END {printf "%d", s / 1048576}')
more=$(awk '$1 == 2 && NF == 2 {print $2}' $NOMAD_TASK_DIR/rest)
echo "together $((sum + more)) MiB of $sum and $more"
wait
`)
		m.says("race", "together 512 MiB")
		m.stop("race")
	})

	run("what a killed process had is free again", func(t *testing.T, m *machine) {
		m.run("killed", share("4GiB"), `
for i in 1 2; do
  @/gpu-user hold 4096 > $NOMAD_TASK_DIR/out.$i &
  until grep holding $NOMAD_TASK_DIR/out.$i; do sleep 0.1; done
  kill -9 $!
done
sleep 3
exec @/gpu-user hold 4096
`)
		harness.Eventually(t, 30*time.Second, "three times all of it", func() (bool, string) {
			as, _ := m.api.Allocs("killed")
			if len(as) == 0 {
				return false, ""
			}
			out, _ := m.muster("alloc", "logs", as[0].ID)
			return strings.Count(out, "holding 4096 MiB") == 3, out
		})
		m.stop("killed")
	})

	run("the charges of the dead are swept by the agent", func(t *testing.T, m *machine) {
		m.run("swept", share("4GiB"), "@/gpu-user hold 3000 & sleep 2; kill -9 $!; wait; touch $NOMAD_TASK_DIR/killed; sleep 600")
		_, _, a := m.gpuOf("swept", "running")
		harness.Eventually(t, 20*time.Second, "nothing is in use, with a peak", func() (bool, string) {
			out, _ := m.muster("alloc", "status", a.ID)
			return strings.Contains(out, "0 / 4096 MiB") && strings.Contains(out, "3000 MiB"), out
		})
		m.stop("swept")
	})

	run("fork and exec", func(t *testing.T, m *machine) {
		m.run("forks", share("1GiB"), "(echo init; echo ctx 0; echo alloc $((1<<29)); echo fork; echo exec; echo init; echo ctx 0; echo alloc $((1<<30)); echo alloc 1; sleep 600) | @/gpu-user proc")
		out := m.says("forks", "0\n2\n")
		if strings.Contains(out, "-1") || strings.Contains(out, "999") {
			t.Errorf("it says %q", out)
		}
		m.stop("forks")
	})

	// Going around the library: the agent sees what the driver says.
	for i, c := range []struct{ name, script string }{
		{"LD_PRELOAD unset", "unset LD_PRELOAD; exec @/gpu-user hold 30720"},
		{"a static program", "(echo init; echo ctx 0; echo alloc $((30<<30)); sleep 600) | @/static-user linked"},
		{"a clean environment", "exec env -i PATH=$PATH LD_LIBRARY_PATH=$LD_LIBRARY_PATH MUSTER_FAKEGPU_STATE=$MUSTER_FAKEGPU_STATE @/gpu-user hold 30720"},
		{"a child that leaves its session", "unset LD_PRELOAD; setsid @/gpu-user hold 30720 & sleep 600"},
		{"a lookup around dlsym", "(echo init; echo ctx 0; echo alloc $((30<<30)); sleep 600) | @/gpu-user dlvsym"},
	} {
		run("bypass by "+c.name+" is caught", func(t *testing.T, m *machine) {
			job := fmt.Sprint("bypass-", i)
			m.run(job, share("10GiB"), command(c.script))
			m.gpuOf(job, "failed")
			m.event(job, "GPU Memory Exceeded", "its share is 10240 MiB")
			m.stop(job)
		})
	}

	run("a share that the task rewrites is put right", func(t *testing.T, m *machine) {
		m.run("rewrite", share("10GiB"), `f=$(ls $NOMAD_ALLOC_DIR/gpu/t/GPU-*); printf '\377\377\377\377\377\0\0\0' | dd of=$f bs=1 seek=8 conv=notrunc 2>/dev/null; sleep 3; exec @/gpu-user hold 30720`)
		m.says("rewrite", "CUDA_ERROR_OUT_OF_MEMORY after 10240 MiB")
		m.stop("rewrite")
	})

	run("the task cannot remove its library", func(t *testing.T, m *machine) {
		m.run("remove", share("1GiB"), "rm -rf $NOMAD_ALLOC_DIR/gpu; ls $NOMAD_ALLOC_DIR/gpu/t; mv $NOMAD_ALLOC_DIR/gpu/t $NOMAD_ALLOC_DIR/gpu/u; sleep 600")
		out := m.says("remove", "libmuster-gpu.so")
		if !strings.Contains(out, "GPU-") {
			t.Errorf("the directory has %q", out)
		}
		m.stop("remove")
	})

	run("a task's own LD_PRELOAD stays", func(t *testing.T, m *machine) {
		m.run("own", share("1GiB"), "echo preload=$LD_PRELOAD; sleep 600", "env {\nLD_PRELOAD = \"/lib/x86_64-linux-gnu/libm.so.6\"\n}")
		if out := m.says("own", "preload="); !strings.Contains(out, "/gpu/t/libmuster-gpu.so:/lib/") {
			t.Errorf("%q", out)
		}
		m.stop("own")
	})

	run("a backend that vanishes ends the task, and it goes elsewhere", func(t *testing.T, m *machine) {
		m.run("vanish", share("1GiB"), holds(512), "# RESCHEDULE")
		_, _, a := m.gpuOf("vanish", "running")
		found, _ := filepath.Glob("/tmp/muster-dev-*/*/" + a.ID + "/alloc/gpu/t/libmuster-gpu.so")
		more, _ := filepath.Glob("/tmp/muster-dev-*/*/*/" + a.ID + "/alloc/gpu/t/libmuster-gpu.so")
		if found = append(found, more...); len(found) != 1 {
			t.Fatalf("the library is at %q", found)
		}
		if err := os.Remove(found[0]); err != nil {
			t.Fatal(err)
		}
		m.event("vanish", "GPU Error", "no longer enforced by shim")
		harness.Eventually(t, 30*time.Second, "another one runs", func() (bool, string) {
			as, err := m.api.Allocs("vanish")
			return err == nil && len(as) == 2 && harness.Count(as, "running") == 1 && harness.Count(as, "failed") == 1, fmt.Sprint(as, err)
		})
		m.stop("vanish")
	})

	run("the environment names GPUs by UUID", func(t *testing.T, m *machine) {
		m.run("env", share("5GiB", "count = 2", "compute = 30"), "echo $CUDA_VISIBLE_DEVICES = $NVIDIA_VISIBLE_DEVICES $MUSTER_GPU_MEMORY_MIB $MUSTER_GPU_COMPUTE $MUSTER_GPU_COUNT; sleep 600")
		out := m.says("env", "5120,5120 30,30 2")
		if f := strings.Fields(out); len(f) < 3 || f[0] != f[2] || strings.Count(f[0], "GPU-") != 2 {
			t.Errorf("it says %q", out)
		}
		m.stop("env")
	})

	run("a task without a GPU sees none", func(t *testing.T, m *machine) {
		m.run("void", "", "echo [$CUDA_VISIBLE_DEVICES] $NVIDIA_VISIBLE_DEVICES; (echo init; sleep 1) | @/gpu-user dlsym; sleep 600")
		m.says("void", "[] void\n100 0")
		m.stop("void")
	})

	run("the metrics tell the use by task", func(t *testing.T, m *machine) {
		m.run("metrics", share("2GiB"), holds(1536))
		_, _, a := m.gpuOf("metrics", "running")
		harness.Eventually(t, 20*time.Second, "the metrics", func() (bool, string) {
			out, err := m.get("/v1/metrics?format=prometheus")
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "muster_task_gpu_memory_bytes") && strings.Contains(line, a.ID) {
					return strings.HasSuffix(strings.TrimSpace(line), " 1.610612736e+09"), line
				}
			}
			return false, fmt.Sprint(err)
		})
		m.stop("metrics")
	})
}

// TestDmem is about a driver that limits control groups: it is preferred, holds without the task's help, and is what
// "hard" wants.
func TestDmem(t *testing.T) {
	m := newMachine(t, "2xH100")
	m.edit(func(s *fakegpu.State) { s.Context, s.Dmem = 0, true })
	m.relook()
	offered := false
	harness.Eventually(t, 20*time.Second, "the node says what it has", func() (bool, string) {
		for _, d := range m.devices() {
			offered = d.Attributes["enforce"] == "dmem,shim,watch"
			if !offered && d.Attributes["muster.dmem"] == "true" {
				t.Skip("does not apply here: no cgroup2 for the driver to limit")
			}
			return offered && d.Node["gpu.enforce"] == "dmem,shim,watch", fmt.Sprint(d)
		}
		return false, ""
	})
	t.Run("hard", func(t *testing.T) {
		m := m.at(t)
		m.run("hard", share("10GiB", `enforce = "hard"`), "unset LD_PRELOAD; exec @/gpu-user hold 30720")
		if _, b, _ := m.gpuOf("hard", "running"); b != "dmem" {
			t.Errorf("the share is enforced by %q", b)
		}
		m.says("hard", "the GPU has 10240 MiB")
		m.says("hard", "CUDA_ERROR_OUT_OF_MEMORY after 10240 MiB")
	})
	t.Run("auto, a static program", func(t *testing.T) {
		m := m.at(t)
		m.run("auto", share("10GiB"), "(echo init; echo ctx 0; echo fill $((1<<30)); sleep 600) | @/static-user linked")
		m.says("auto", "2 10\n")
	})
	t.Run("the limit vanishes", func(t *testing.T) {
		m := m.at(t)
		m.run("gone", share("10GiB", `enforce = "dmem"`), holds(1024))
		m.gpuOf("gone", "running")
		m.edit(func(s *fakegpu.State) { s.Limits = nil })
		m.event("gone", "GPU Error", "no longer enforced by dmem")
		m.gpuOf("gone", "failed")
	})
	t.Run("the backend vanishes", func(t *testing.T) {
		m := m.at(t)
		m.edit(func(s *fakegpu.State) { s.Dmem = false })
		m.relook()
		m.until("the backend is gone", func(all map[string]device) bool {
			for _, d := range all {
				return d.Attributes["enforce"] == "shim,watch"
			}
			return false
		})
		m.run("late", share("10GiB", `enforce = "hard"`), holds(1024))
		m.waits("late", "hard")
	})
}
