//go:build linux && cgo

package gpu

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/client/gpu/shim"
)

// looksMax limits how often the driver is queried to measure it.
const looksMax = 10000

// latency prints how long queries of the driver take.
func latency(times string, out, errs io.Writer) int {
	n, err := strconv.Atoi(times)
	if err != nil || n < 1 || n > looksMax {
		fmt.Fprintf(errs, "gpu-probe: -time: want 1 to %d, got %q\n", looksMax, times)
		return 2
	}
	p, err := open()
	if err != nil {
		fmt.Fprintln(errs, "gpu-probe:", err)
		return 1
	}
	took := make([]time.Duration, n)
	for i := range took {
		begin := time.Now()
		if _, err := p.dynamic(false); err != nil {
			fmt.Fprintln(errs, "gpu-probe:", err)
			return 1
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	fmt.Fprintf(out, "looks %d p50 %s p99 %s\n", n, took[n/2], took[min(n-1, n*99/100)])
	return 0
}

// placeShare creates the files of a share and prints the environment that a program needs for it.
func placeShare(dir, share string, out, errs io.Writer) int {
	uuid, size, ok := strings.Cut(share, "=")
	mib, err := strconv.ParseInt(size, 10, 64)
	if !ok || err != nil || mib < 1 || mib > 1<<30 {
		fmt.Fprintf(errs, "gpu-probe: -share: want UUID=MIB, got %q\n", share)
		return 2
	}
	if err := shim.Place(dir, map[string]int64{uuid: mib << 20}); err != nil {
		fmt.Fprintln(errs, "gpu-probe:", err)
		return 1
	}
	fmt.Fprintf(out, "%s=%s\n", shim.Env, shim.Preload(dir, ""))
	return 0
}
