//go:build e2e

package harness

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// TestStatOf looks at processes while they are reaped: none passes for a live one without a parent.
func TestStatOf(t *testing.T) {
	reaped := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		cmd := exec.Command("/bin/true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = cmd.Wait() }()
		for gone := false; !gone; {
			fields, live := statOf(cmd.Process.Pid)
			gone = fields == nil
			if live && fields[1] != strconv.Itoa(os.Getpid()) {
				t.Fatalf("a child of %d is live in state %s with parent %s", os.Getpid(), fields[0], fields[1])
			}
			if fields != nil && fields[1] == "0" {
				reaped++
			}
		}
	}
	t.Logf("%d looks met a process that was being reaped", reaped)
}
