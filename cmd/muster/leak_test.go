package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asCommand in the environment makes the test program be the command, for tests that need a process.
const asCommand = "MUSTER_TEST_AS_COMMAND=1"

func TestMain(m *testing.M) {
	if os.Getenv("MUSTER_TEST_AS_COMMAND") != "" {
		os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}
