package main

import (
	"bytes"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestCheckpointStorages: get-config shows what was measured of storages, and nothing where none is limited.
func TestCheckpointStorages(t *testing.T) {
	var out bytes.Buffer
	o := &env{out: &out, noColor: true}
	o.saveStorages(nil)
	o.saveStorages([]wire.CheckpointStorage{
		{Name: "lustre1", Most: 16, Limit: 6, Measured: 41, AloneMiBps: 1000, TogetherMiBps: 5100, Saving: 6, Waiting: 14},
		{Name: "nfs", Most: 16, Limit: 16},
	})
	want := `
Checkpoint Storages
STORAGE  AT A TIME  MOST  ALONE       TOGETHER    MEASURED  SAVING  WAITING
lustre1  6          16    1000 MiB/s  5100 MiB/s  41        6       14
nfs      16         16    -           -           0         0       0
`
	if out.String() != want {
		t.Errorf("got %s\nwant %s", out.String(), want)
	}
}
