//go:build !linux || !cgo

package gpu

import (
	"fmt"
	"os"
)

// Built says why this program cannot query GPUs, or "".
const Built = "built without cgo"

// MaybeRun is the hidden verb of the child process; this build does not have it.
func MaybeRun() {
	if len(os.Args) >= 2 && os.Args[1] == verb {
		fmt.Fprintln(os.Stderr, "gpu-probe: "+Built+": it cannot load the NVIDIA driver's library")
		os.Exit(1)
	}
}
