package server

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/powercut"
)

// TestPowerCutOfTheID: once a server has used its ID it keeps it, and a crash while it is made leaves nothing that the next
// start would refuse. A server with another ID is another voter.
func TestPowerCutOfTheID(t *testing.T) {
	id := func(dir string) (string, error) {
		return serverID(&Config{Name: "s", DataDir: filepath.Join(dir, "data")})
	}
	powercut.Record(t, t.TempDir(), func(dir string) error {
		got, err := id(dir)
		powercut.Ack("%s", got)
		return err
	}).Restart(t, func(dir string, acked []string) error {
		got, err := id(dir)
		if err == nil && len(acked) > 0 && strings.TrimSpace(acked[0]) != got {
			err = fmt.Errorf("the server is %s, and was %s", got, acked[0])
		}
		return err
	})
}
