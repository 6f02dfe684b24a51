package client

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/powercut"
)

// TestPowerCutOfTheIdentity: once an agent has used its identity it keeps it, and a crash while it is made leaves nothing
// that the next start would refuse.
func TestPowerCutOfTheIdentity(t *testing.T) {
	load := func(dir string) (string, error) {
		id, err := loadIdentity(dir)
		return fmt.Sprint(id.id, " ", id.secret), err
	}
	powercut.Record(t, t.TempDir(), func(dir string) error {
		got, err := load(dir)
		powercut.Ack("%s", got)
		if err != nil {
			return err
		}
		id, err := loadIdentity(dir)
		if err == nil {
			err = id.settle(dir)
		}
		return err
	}).Restart(t, func(dir string, acked []string) error {
		got, err := load(dir)
		if err == nil && len(acked) > 0 && strings.TrimSpace(acked[0]) != got {
			err = fmt.Errorf("the node is %s, and was %s", got, acked[0])
		}
		return err
	})
}
