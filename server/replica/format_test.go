package replica

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// formatReplica is a replica without raft, and what it ended with.
func formatReplica(t *testing.T, dir string) (r *Replica, exits *[]string) {
	t.Helper()
	exits = &[]string{}
	r = New(Config{DataDir: dir, InMemory: dir == "", Logger: hclog.NewNullLogger(), Now: time.Now, Exit: func(why string) { *exits = append(*exits, why) }})
	return r, exits
}

func logOf(t *testing.T, index uint64, body structs.CommandBody) *raft.Log {
	t.Helper()
	data, err := fsm.Encode(structs.Command{Time: 1, Body: body}, feature.Newest)
	if err != nil {
		t.Fatal(err)
	}
	return &raft.Log{Type: raft.LogCommand, Index: index, Data: data}
}

// TestNewerEntry wants a server that meets an entry of a newer release to end with one sentence, and to apply nothing
// after it.
func TestNewerEntry(t *testing.T) {
	r, exits := formatReplica(t, "")
	namespace := &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "n"}}}
	out := r.machine.ApplyBatch([]*raft.Log{
		logOf(t, 3, &structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.Newest, By: "test"}),
		logOf(t, 4, &structs.UpgradeFinishCommand{Format: feature.Newest + 1, By: "9.9.9"}),
		logOf(t, 5, namespace),
	})
	if len(*exits) != 1 || strings.Contains((*exits)[0], "\n") || !strings.Contains((*exits)[0], "Muster 9.9.9 or later") {
		t.Fatalf("the server ended with %q, want one sentence that names the release to run", *exits)
	}
	after := r.machine.ApplyBatch([]*raft.Log{logOf(t, 6, namespace)})
	if res, ok := after[0].(structs.Result); !ok || res.Err == nil || len(out) != 3 {
		t.Errorf("an entry after it was answered with %+v", after[0])
	}
	if snap := r.machine.fsm.Snapshot(); snap.Namespace("n") != nil || r.Quarantined() == "" {
		t.Error("an entry after it was applied, or the server is trusted")
	}
}

// TestNewerSnapshot wants the same of a snapshot that a newer leader sends.
func TestNewerSnapshot(t *testing.T) {
	r, exits := formatReplica(t, "")
	if err := r.machine.Restore(io.NopCloser(strings.NewReader("damaged"))); err == nil || len(*exits) != 0 {
		t.Fatalf("a damaged snapshot: %v, ended with %q", err, *exits)
	}
	newer := fsm.New(fsm.Options{})
	var file strings.Builder
	if err := fsm.WriteSnapshot(&file, newer.Snapshot()); err != nil {
		t.Fatal(err)
	}
	// The header is a map whose first fields are Format and Index; the format is the byte after its name.
	text := file.String()
	at := strings.Index(text, "Format") + len("Format")
	text = text[:at] + string([]byte{byte(feature.Newest) + 1}) + text[at+1:]
	err := r.machine.Restore(io.NopCloser(strings.NewReader(text)))
	var other *feature.UnreadableError
	if !errors.As(err, &other) || len(*exits) != 1 || strings.Contains((*exits)[0], "\n") {
		t.Fatalf("got %v, ended with %q", err, *exits)
	}
}

// TestFormatFile wants the format in force to be noted, and a build that does not read it to refuse to start.
func TestFormatFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "raft"), 0o700); err != nil {
		t.Fatal(err)
	}
	r, _ := formatReplica(t, dir)
	if err := r.checkFormat(); err != nil {
		t.Fatalf("an empty directory: %v", err)
	}
	r.machine.ApplyBatch([]*raft.Log{logOf(t, 3, &structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.Newest, By: "test"})})
	again, _ := formatReplica(t, dir)
	if err := again.checkFormat(); err != nil || again.machine.format != (formatNote{feature.Newest, "test"}) {
		t.Fatalf("%v, noted %+v", err, again.machine.format)
	}
	if err := writeFormat(r.raftDir(), formatNote{feature.Newest + 1, "9.9.9"}); err != nil {
		t.Fatal(err)
	}
	err := again.Start(nil)
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "run Muster 9.9.9 or later") {
		t.Errorf("started on newer data: %v", err)
	}
}
