//go:build e2e

package docker

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

// dynamicTar returns the file system of an image with a dynamically linked program that finds the driver's library at run time,
// as CUDA's runtime does, with this machine's loader and C library, and the fake driver.
func dynamicTar(t *testing.T, libs string) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := lib.Sources(dir); err != nil {
		t.Fatal(err)
	}
	user := filepath.Join(dir, "gpu-user")
	if err := lib.Compile("-DLOADER", "-o", user, filepath.Join(dir, "user.c"), "-ldl", "-lpthread"); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"gpu-user": user, "driver/" + lib.CUDA: filepath.Join(libs, lib.CUDA)}
	for _, of := range []string{user, filepath.Join(libs, lib.CUDA)} {
		out, err := exec.Command("ldd", of).CombinedOutput()
		if err != nil {
			t.Fatalf("ldd %s: %v %s", of, err, out)
		}
		for _, m := range regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
			files[strings.TrimPrefix(m[1], "/")] = m[1]
			if strings.HasPrefix(filepath.Base(m[1]), "libc.so") { // every image with this C library has these, too
				for _, part := range []string{"libdl.so.2", "libpthread.so.0"} {
					p := filepath.Join(filepath.Dir(m[1]), part)
					files[strings.TrimPrefix(p, "/")] = p
				}
			}
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, path := range files { // an image does not depend on the order
		b, err := os.ReadFile(path)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(b)), Typeflag: tar.TypeReg})
		}
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// shim: a dynamically linked program in a container allocates GPU memory up to its task's share, sees no more than that,
// and is refused what goes beyond, by itself and together with a second process of the container.
func (n *node) shim(t *testing.T, libs string) {
	const gib = 1 << 30
	n.engine.build(dynamicTar(t, libs), "cuda:v1", `ENTRYPOINT ["/gpu-user"]`, `ENV LD_LIBRARY_PATH=/driver`)
	found := regexp.MustCompile(regexp.QuoteMeta(fakegpu.Env) + `="?([^ "\n]+)`).FindStringSubmatch(n.agent.Log.String())
	if found == nil {
		t.Fatal("the agent does not tell where the state of its GPUs is")
	}
	state := &fakegpu.File{Path: found[1]}
	if err := state.Edit(func(s *fakegpu.State) { s.Context = 0 }); err != nil { // shares are counted to the byte
		t.Fatal(err)
	}
	dir := filepath.Dir(found[1])
	run := func(name string, hold int) harness.Alloc {
		t.Helper()
		n.run(t, name, "service", fmt.Sprintf("resources {\n cpu = 50\n memory = 64\n gpu {\n memory = \"20GiB\"\n enforce = \"shim\"\n}\n}\n"+
			"env {\n %s = %q\n}\nconfig {\n image = \"cuda:v1\"\n args = [\"hold\", \"%d\"]\n volumes = [\"%s:%s\"]\n}\n", fakegpu.Env, found[1], hold, dir, dir), "")
		return n.alloc(t, name, "running")
	}
	says := func(a harness.Alloc, want ...string) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, a.JobID+" tells what it holds", func() (bool, string) {
			out := n.logs(t, a, "stdout")
			for _, w := range want {
				if !strings.Contains(out, w) {
					status, _ := n.muster("alloc", "status", a.ID)
					return false, out + n.logs(t, a, "stderr") + status
				}
			}
			return true, ""
		})
	}
	beyond := run("beyond", 24<<10)
	says(beyond, "the GPU has 20480 MiB, 20480 MiB are free", "CUDA_ERROR_OUT_OF_MEMORY after 20480 MiB")

	within := run("within", 15<<10)
	says(within, "holding 15360 MiB")
	asks := func(want string, sizes ...int) {
		t.Helper()
		text := "init\nctx 0\n"
		for _, size := range sizes {
			text += fmt.Sprintf("alloc %d\n", size)
		}
		cmd := exec.Command(harness.Bin(t), "alloc", "exec", "-i=true", "-t=false", within.ID, "/gpu-user", "proc")
		cmd.Env, cmd.Stdin = append(os.Environ(), "MUSTER_ADDR="+n.addr), strings.NewReader(text+"quit\n")
		out, err := cmd.CombinedOutput()
		if got := strings.Fields(string(out)); err != nil || len(got) < len(sizes) || strings.Join(got[len(got)-len(sizes):], " ") != want {
			t.Errorf("a second process beside 15 of 20 GiB asks for %v: %v, want %s\n%s", sizes, err, want, out)
		}
	}
	asks("2 0 2", 6*gib, 5*gib, 1<<20)
	harness.Eventually(t, 30*time.Second, "alloc status tells the use", func() (bool, string) {
		out, err := n.muster("alloc", "status", within.ID)
		return err == nil && strings.Contains(out, "enforced by shim") && regexp.MustCompile(`/ 20480 MiB +20480 MiB .* 2\n`).MatchString(out), out
	})
	// The agent has looked at the books since: it knows the container's processes although their pids are not the host's.
	asks("2 0", 6*gib, 5*gib)
	if a := n.alloc(t, "beyond", "running"); a.ID != beyond.ID {
		t.Errorf("who was refused was started again: %s", events(a))
	}
}
