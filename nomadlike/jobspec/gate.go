package jobspec

import (
	"github.com/hashicorp/hcl/v2"

	"github.com/muster-sched/muster/internal/hclgate"
)

// Limits on a job file, checked on its tokens before the parser runs.
const (
	SizeMaxServer = 1 << 20 // bytes of a job file that a server reads
	SizeMaxCLI    = 4 << 20 // bytes of a job file that the command line reads
	depthMax      = hclgate.DepthMax
	bracketsMax   = hclgate.BracketsMax
)

// gate refuses a source that is too large or too deep to be parsed safely.
func gate(filename string, src []byte, sizeMax int) *hcl.Diagnostic {
	return hclgate.Check(filename, src, sizeMax)
}
