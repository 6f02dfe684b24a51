package shim

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

// BenchmarkOverhead measures what a call costs through the library: over a driver that answers at once, where the difference
// is all the library's, and over the fake driver, which writes a file for each call.
func BenchmarkOverhead(b *testing.B) {
	libs := b.TempDir()
	bare := filepath.Join(libs, "bare")
	if err := lib.Build(libs); err != nil {
		b.Skip("not run: " + err.Error())
	}
	for _, err := range []error{
		os.Mkdir(bare, 0o755), lib.Sources(libs),
		lib.Compile("-DLOADER", "-o", filepath.Join(libs, "loader"), filepath.Join(libs, "user.c"), "-lpthread", "-ldl"),
		lib.Compile("-fPIC", "-shared", "-Wl,-soname,"+lib.CUDA, "-o", filepath.Join(bare, lib.CUDA), filepath.Join(libs, "atonce.c")),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	s, err := fakegpu.New("1xH100", "overhead")
	if err != nil {
		b.Fatal(err)
	}
	f, err := fakegpu.Create(filepath.Join(b.TempDir(), "state"), s)
	if err != nil {
		b.Fatal(err)
	}
	share := filepath.Join(b.TempDir(), "share")
	if err := Place(share, map[string]int64{s.GPUs[0].UUID: 64 << 30, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f": 64 << 30}); err != nil {
		b.Fatal(err)
	}
	measure := func(b *testing.B, driver, preload, kind string, rounds int) float64 {
		cmd := exec.Command(filepath.Join(libs, "loader"), "dlsym")
		cmd.Env = []string{"LD_LIBRARY_PATH=" + driver, fakegpu.Env + "=" + f.Path, Env + "=" + preload}
		cmd.Stdin = strings.NewReader(fmt.Sprintf("init\nctx 0\nbench %[1]d %[2]d 2097152\nbench %[1]d %[2]d 2097152\n", kind[0], rounds))
		out, err := cmd.Output()
		if err != nil {
			b.Fatal(err)
		}
		words := bytes.Fields(out)
		ns, err := strconv.ParseFloat(string(words[len(words)-1]), 64)
		if err != nil {
			b.Fatalf("%s: %v", out, err)
		}
		return ns
	}
	for _, c := range []struct {
		name, driver, kind string
		rounds             int
	}{
		{"at_once/allocate_and_free", bare, "a", 20000}, {"at_once/in_stream_order", bare, "s", 20000}, {"at_once/ask_what_is_free", bare, "i", 20000},
		{"fake_driver/allocate_and_free", libs, "a", 200},
	} {
		b.Run(c.name, func(b *testing.B) {
			plain, with := 0.0, 0.0
			for range b.N {
				plain += measure(b, c.driver, "", c.kind, c.rounds)
				with += measure(b, c.driver, Preload(share, ""), c.kind, c.rounds)
			}
			b.ReportMetric(plain/float64(b.N), "plain-ns")
			b.ReportMetric(with/float64(b.N), "shim-ns")
			b.ReportMetric(with/plain, "ratio")
		})
	}
}
