//go:build e2e

package docker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

// TestDockerGPU gives fake GPUs to containers: by CDI when the engine has it, else as device files. The files are real
// character devices without a driver behind them: an open of one's own says ENXIO, of another's EPERM or ENOENT.
func TestDockerGPU(t *testing.T) {
	e := newEngine(t)
	e.build(imageTar(t), "box:v1", `ENTRYPOINT ["/box"]`, `ENV NVIDIA_VISIBLE_DEVICES=all`)
	libs := filepath.Join(e.dir, "lib")
	if err := lib.Build(libs); errors.Is(err, lib.ErrNoCompiler) {
		harness.NotRun(t, "no C compiler for the fake driver libraries")
	} else if err != nil {
		t.Fatal(err)
	}
	mode, plugin := "devices", "    gpu = \"devices\"\n"
	if dir := os.Getenv("MUSTER_E2E_CDI_DIR"); dir != "" {
		mode, plugin = "cdi", fmt.Sprintf("    cdi_dir = %q\n", dir)
	}
	n := &node{t: t, dir: t.TempDir(), engine: e}
	t.Cleanup(func() { harness.KillBelow(t, n.dir) })
	port := harness.FreePort(t)
	n.addr = fmt.Sprintf("http://127.0.0.1:%d", port)
	conf := filepath.Join(n.dir, "agent.hcl")
	text := fmt.Sprintf("ports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\nplugin \"docker\" {\n  config {\n    endpoint = %q\n    volumes {\n      enabled = true\n    }\n%s  }\n}\n", port, harness.FreePort(t), harness.FreePort(t), e.host(), plugin)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.agent = harness.Start(t, nil, "agent", []string{fakegpu.DirEnv + "=" + libs}, "agent", "-dev", "-dev-gpus=4xH100", "-config", conf)
	n.api = harness.NewAPI(t, nil, "", n.addr)
	t.Cleanup(func() {
		n.agent.Signal(syscall.SIGINT)
		if err := n.agent.WaitExit(30 * time.Second); err != nil {
			t.Errorf("the agent's end: %v", err)
		}
		if left := n.containers(t, ""); len(left) > 0 {
			t.Errorf("a -dev agent left %d containers", len(left))
		}
	})
	harness.Eventually(t, 30*time.Second, "the GPUs and the engine to be found", func() (bool, string) {
		var list []struct{ ID string }
		if err := n.api.Call("GET", "/v1/nodes", nil, &list); err != nil || len(list) == 0 {
			return false, fmt.Sprint(err)
		}
		var node struct {
			Attributes    map[string]string
			NodeResources struct{ Devices []struct{ Name string } }
		}
		err := n.api.Call("GET", "/v1/node/"+list[0].ID, nil, &node)
		return err == nil && node.Attributes["driver.docker.gpu"] == mode && len(node.NodeResources.Devices) > 0, fmt.Sprint(node, err)
	})
	files := make([]string, 0, 6)
	for i := range 4 {
		files = append(files, fmt.Sprintf("/dev/nvidia%d", i))
	}
	files = append(files, "/dev/nvidiactl", "/dev/nvidia-modeset")
	job := func(name, gpu string) harness.Alloc {
		n.run(t, name, "service", "resources {\n cpu = 50\n memory = 64\n "+gpu+"\n}\n"+box("sleep", "600"), "")
		return n.alloc(t, name, "running")
	}
	open := func(a harness.Alloc) map[string]string {
		t.Helper()
		out, err := n.muster(append([]string{"alloc", "exec", "-i=false", "-t=false", a.ID, "/box", "open"}, files...)...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got := map[string]string{}
		for line := range strings.Lines(out) {
			f, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			got[f] = rest
		}
		return got
	}
	env := func(a harness.Alloc) string {
		out, err := n.muster("alloc", "exec", "-i=false", "-t=false", a.ID, "/box", "cat", "/proc/1/environ")
		if err != nil {
			t.Fatal(out)
		}
		return strings.ReplaceAll(out, "\x00", "\n")
	}
	two := job("two", "gpu {\n count = 2\n}")
	got := open(two)
	var own int
	for _, f := range files[:4] {
		switch {
		case strings.Contains(got[f], "no such device"):
			own++
		case !strings.Contains(got[f], "no such file"):
			t.Errorf("%s: %s", f, got[f])
		}
	}
	if own != 2 || !strings.Contains(got["/dev/nvidiactl"], "no such device") || !strings.Contains(got["/dev/nvidia-modeset"], "no such file") {
		t.Errorf("a task with two GPUs opens %v", got)
	}
	uuids := regexp.MustCompile(`(?m)^NVIDIA_VISIBLE_DEVICES=(GPU-[0-9a-f-]+),(GPU-[0-9a-f-]+)$`).FindStringSubmatch(env(two))
	if uuids == nil || !strings.Contains(env(two), "CUDA_VISIBLE_DEVICES="+uuids[1]+","+uuids[2]+"\n") {
		t.Errorf("environment:\n%s", env(two))
	}
	if mode == "cdi" {
		spec, err := os.ReadFile(filepath.Join(os.Getenv("MUSTER_E2E_CDI_DIR"), "muster-"+two.ID+".t.0.json"))
		if err != nil || !strings.Contains(string(spec), `"kind": "muster.local/gpu"`) {
			t.Errorf("%v %s", err, spec)
		}
	}
	// A share is held by the library, which the container's root can neither change nor remove.
	shared := job("shared", "gpu {\n memory = \"10GiB\"\n}")
	const library = "/alloc/gpu/t/libmuster-gpu.so"
	if !strings.Contains(env(shared), "LD_PRELOAD="+library+"\n") {
		t.Errorf("environment of a share:\n%s", env(shared))
	}
	mounts, err := n.muster("alloc", "exec", "-i=false", "-t=false", shared.ID, "/box", "cat", "/proc/1/mounts")
	if err != nil || !regexp.MustCompile(`(?m) `+regexp.QuoteMeta(library)+` \S+ ro,`).MatchString(mounts) {
		t.Errorf("%v; the library is not mounted read-only:\n%s", err, mounts)
	}
	t.Run("shim", func(t *testing.T) { n.shim(t, libs) })
	none := job("none", "")
	for f, err := range open(none) {
		if !strings.Contains(err, "no such file") {
			t.Errorf("a task without GPUs: %s: %s", f, err)
		}
	}
	wantText(t, "environment of a task without GPUs", env(none), "NVIDIA_VISIBLE_DEVICES=void\n")
	n.run(t, "steals", "batch", boxWith("devices = [{ host_path = \"/dev/null\", container_path = \"/dev/x\" }]", "env"), "")
	wantText(t, "events", events(n.alloc(t, "steals", "failed")), "is not one of /dev/fuse")
}
