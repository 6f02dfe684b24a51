package server

import (
	"os"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" { // a fifth less processor time: these tests have small heaps
		debug.SetGCPercent(300)
	}
	goleak.VerifyTestMain(m)
}
