//go:build !linux

package jobspec

import "os/exec"

// Servers run on Linux. Elsewhere only the time limit and Go's own memory limit apply to the child.
func limitProcess(*exec.Cmd) {}

func limitSelf() error { return nil }
