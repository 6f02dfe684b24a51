package main

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// asCommand in the environment makes the test program be the command, for tests that need a process.
const asCommand = "MUSTER_TEST_AS_COMMAND=1"

func TestMain(m *testing.M) {
	if os.Getenv("MUSTER_TEST_AS_COMMAND") != "" {
		os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	_ = os.Unsetenv("MUSTER_CONTEXT")
	_ = os.Setenv("XDG_CONFIG_HOME", filepath.Join(os.TempDir(), "muster-test-without-contexts")) // it does not exist
	goleak.VerifyTestMain(m)
}
