package sim

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// writeTrace makes a trace of n jobs that offers load times the capacity of a cluster of 1,000 nodes with 8 GPUs.
func writeTrace(tb testing.TB, n int, load float64) string {
	tb.Helper()
	name := filepath.Join(tb.TempDir(), "trace.csv")
	var b bytes.Buffer
	b.WriteString("submit,runtime,gpus,cpus,memory,user,limit\n")
	d := draws{7}
	sizes := []int{1, 1, 1, 1, 1, 2, 2, 4, 8, 8, 16, 32}
	mean := 0.0
	for _, s := range sizes {
		mean += float64(s) / float64(len(sizes))
	}
	const run = 3 * 3600.0
	rate := load * 8000 / (mean * run)
	at := 0.0
	for range n {
		at += -math.Log(d.float()) / rate
		g := sizes[d.intn(len(sizes))]
		r := math.Exp(1.5*d.normal())*run/math.Exp(1.125) + 10
		fmt.Fprintf(&b, "%.0f,%.0f,%d,%d,%d,u%d,%.0f\n", at, r, g, g*(2<<d.intn(3)), g*8192, d.intn(60), r*(1.1+3*d.float())+60)
	}
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		tb.Fatal(err)
	}
	return name
}

// BenchmarkReplay is jobs on 1,000 nodes with 8 GPUs, with more demand than room: ns/job times 100,000 is to be under a
// minute.
func BenchmarkReplay(b *testing.B) {
	for _, load := range []float64{0.9, 1.3} {
		b.Run(fmt.Sprintf("load=%.0f%%", 100*load), func(b *testing.B) {
			const n = 8_000
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			o := &Options{Trace: writeTrace(b, n, load), Nodes: "1000x8xH100-80GiB"}
			for b.Loop() {
				rs, err := Run(context.Background(), o)
				if err != nil {
					b.Fatal(err)
				}
				for _, name := range []string{"avebsld", "passes", "refused"} {
					v, _ := rs[0].Get(name)
					b.ReportMetric(v, name)
				}
				v, _ := rs[0].Get("overhead")
				b.ReportMetric(v, "overhead-%")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/job")
		})
	}
}
