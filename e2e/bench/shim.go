package main

import "fmt"

// shim measures what the library that holds programs to their shares of GPU memory adds to a call. Kernels are launched past it.
func shim() {
	cmd := "go test -run '^$' -bench Overhead ./client/gpu/shim"
	res := goBench("./client/gpu/shim", "BenchmarkOverhead", "3x")
	for _, r := range []struct{ name, what string }{
		{"allocate_and_free", "cuMemAlloc and cuMemFree"}, {"in_stream_order", "cuMemAllocAsync and cuMemFreeAsync from a pool with room"}, {"ask_what_is_free", "cuMemGetInfo"},
	} {
		if m := res["BenchmarkOverhead/at_once/"+r.name]; m != nil {
			row("GPU shares: added by the library to "+r.what, fmt.Sprintf("%.2f us", (m["shim-ns"]-m["plain-ns"])/1e3), "<= 5 us", "-", cmd)
		}
	}
	if m := res["BenchmarkOverhead/fake_driver/allocate_and_free"]; m != nil {
		row("GPU shares: the pair with the library over without, fake driver", fmt.Sprintf("%.3f of %.0f us", m["ratio"], m["plain-ns"]/1e3), "<= 1.02", "HAMi -1.2 % tok/s", cmd)
	}
}
