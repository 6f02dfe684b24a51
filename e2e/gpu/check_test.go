//go:build e2e

package gpu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
)

// nvidiaSMI answers what scripts/gpu-check asks of nvidia-smi, as a driver without MIG does. Tasks see what they were given.
const nvidiaSMI = `#!/bin/sh
case "$*" in
-L)
	[ -n "$NOMAD_ALLOC_ID" ] && case "$CUDA_VISIBLE_DEVICES" in GPU-*) ;; *) echo "Failed to initialize NVML: Unknown Error"; exit 255 ;; esac
	echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: %[1]s)" ;;
*memory.free,mig.mode.current,uuid*) printf '1000, [N/A], GPU-11111111-0000-0000-0000-000000000000\n80996, [N/A], %[1]s\n99999, Enabled, GPU-22222222-0000-0000-0000-000000000000\n' ;;
*driver_version*) echo 580.159.04 ;;
*=name*) echo "NVIDIA H100 80GB HBM3" ;;
*memory.total*) echo %[2]s ;;
*pci.bus_id*) echo 00000000:10:00.0 ;;
*compute_cap*) echo 9.0 ;;
*enforced.power.limit*) echo 700.00 ;;
*ecc.mode.current*) echo "[N/A]" ;;
*-q*) echo "    GPU Recovery Action                   : None" ;;
*) echo "nvidia-smi: $*" >&2; exit 2 ;;
esac
`

// TestGPUCheck runs the script for machines with a GPU over the fake libraries, to show that it works where it is
// needed: first all is well, then nvidia-smi reports another memory size, and without nvidia-smi it says that this
// check was not run.
func TestGPUCheck(t *testing.T) {
	m := newMachine(t, "1xT4") // for its libraries and directory; the script starts its own agent
	bin := filepath.Join(m.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := fakegpu.New("1xH100", "check")
	if err != nil {
		t.Fatal(err)
	}
	s.Context = 0
	f, err := fakegpu.Create(filepath.Join(m.dir, "check-state"), s)
	if err != nil {
		t.Fatal(err)
	}
	libs := filepath.Join(m.dir, "lib")
	run := func(mib, path string, args ...string) (string, int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), fmt.Appendf(nil, nvidiaSMI, s.GPUs[0].UUID, mib), 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, "../../scripts/gpu-check", args...)
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		c.WaitDelay = 30 * time.Second
		c.Env = append(os.Environ(), "PATH="+path, "MUSTER_BIN="+harness.Bin(t), "GPU_CHECK_AGENT=-dev-gpus=1xH100", "LD_LIBRARY_PATH="+libs,
			fakegpu.DirEnv+"="+libs, fakegpu.Env+"="+f.Path)
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), c.ProcessState.ExitCode()
	}
	if _, err := exec.LookPath("python3"); err != nil {
		harness.NotRun(t, "no python3 for scripts/gpu-check")
	}
	out, code := run("81559", bin+":"+os.Getenv("PATH"))
	if code != 0 {
		t.Errorf("it ends with %d", code)
	}
	for _, row := range []string{
		"memory, MiB                          ok", "driver: total memory is the share    ok", "driver: beyond it, error 2           ok       4096 MiB",
		"two processes get one share          ok", "an agent lists the GPU               info", "a task without a GPU finds none      ok", "a task with one GPU finds one        ok", "ECC                                  info",
		"a task's share, its context counted  ok", "watch ends who takes more            ok       holds 4", "without its library, the watcher ends who takes more ok",
		"| recovery action | info | None |", "NVML latency, 32 processes           info     looks 100",
	} {
		if !strings.Contains(out, row) {
			t.Errorf("no row %q", row)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
	left, _ := filepath.Glob("/var/tmp/gpu-check-*")
	if len(left) > 0 {
		t.Errorf("it leaves %q", left)
	}
	if out, code = run("80000", bin+":/usr/bin:/bin", "-python", "/no/python"); code != 1 || !strings.Contains(out, "no /no/python") || !strings.Contains(out, "DIFFERS  gpu-probe 81559, nvidia-smi 80000") {
		t.Errorf("another memory: %d\n%s", code, out)
	}
	os.Remove(filepath.Join(bin, "nvidia-smi"))
	c := exec.Command("../../scripts/gpu-check")
	c.Env = append(os.Environ(), "PATH=/usr/bin:/bin")
	if out, err := c.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "gpu-check was not run: this machine has no NVIDIA GPU") {
		t.Errorf("without a GPU: %v, %s", err, out)
	}
}
