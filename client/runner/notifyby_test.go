package runner

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/driver"
)

// TestNotifyBy: a command that writes without end takes no memory of the agent for it, and the reason is one line that moves no
// terminal.
func TestNotifyBy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	chunk := bytes.Repeat([]byte("no end of it\n"), 1<<16)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	endless := func(ctx context.Context, req driver.ExecRequest) (int, error) {
		for range 200 { // some 160 MiB
			if _, err := req.Stderr.Write(chunk); err != nil {
				return -1, err
			}
		}
		<-ctx.Done()
		return -1, ctx.Err()
	}
	err := notifyBy(ctx, endless, []string{"/bin/endless", "x"})
	runtime.ReadMemStats(&after)
	if err == nil || err.Error() != "command /bin/endless did not end in time: no end of it" {
		t.Errorf(`%v; want an error, err.Error() = "command /bin/endless did not end in time: no end of it"`, err)
	}
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 16<<20 {
		t.Errorf("%d bytes are held", used)
	}
	fails := func(_ context.Context, req driver.ExecRequest) (int, error) {
		go req.Stderr.Write([]byte("left behind\n")) // something that still holds the stream
		_, err := io.WriteString(req.Stderr, "first\n\x1b[2J"+strings.Repeat("x", 1000)+"\n")
		return 3, err
	}
	if err := notifyBy(t.Context(), fails, []string{"/bin/fails"}); err == nil || len(err.Error()) > 250 || strings.Contains(err.Error(), "\x1b") || !strings.HasPrefix(err.Error(), "exit code 3: ") {
		t.Errorf("%v", err)
	}
}
