package runner

import (
	"testing"

	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/structs"
)

// TestValuesOfCheckpointOn: a notice is sent for the cause that a checkpoint block names, and for no other.
func TestValuesOfCheckpointOn(t *testing.T) {
	for _, on := range structs.Enums["Checkpoint.On"] {
		g := &structs.Group{Name: "g", Checkpoint: &structs.Checkpoint{Signal: "SIGUSR1", On: []string{on}}, Tasks: []*structs.Task{{Name: "t"}}}
		tk := &task{r: &Runner{alloc: &structs.Allocation{Group: "g", Job: &structs.Job{Groups: []*structs.Group{g}}}}, name: "t"}
		for _, cause := range structs.Enums["Checkpoint.On"] {
			if sent := tk.checkpoint(cause) != nil; sent != (cause == on) {
				t.Errorf("on %q, cause %q: notice %v", on, cause, sent)
			}
		}
	}
}

// TestValuesOfTemplateChange: a changed template restarts its task by default, and with change_mode "noop" nothing follows.
func TestValuesOfTemplateChange(t *testing.T) {
	for mode, want := range map[string]wishKind{"": wishRestart, "restart": wishRestart, "noop": wishNone} {
		tk := &task{}
		if goes := tk.followTemplates(t.Context(), nil, []templateSpec{{ChangeMode: mode}}); goes != (want == wishNone) || tk.asked() != want {
			t.Errorf("change_mode %q: the run continues: %v, asked for %v", mode, goes, tk.asked())
		}
	}
}

// TestValuesOfAddressMode: only "alloc" leads into the network of an allocation.
func TestValuesOfAddressMode(t *testing.T) {
	on := site{alloc: &structs.Allocation{Ports: []structs.PortGrant{{Label: "http", Value: 20001, To: 80, HostIP: "192.0.2.1"}}},
		node: &structs.Node{Resources: structs.NodeResources{Networks: []structs.NodeNetwork{{IP: "192.0.2.1"}}}}, own: &taskenv.Network{IP: "10.0.0.2"}}
	for mode, want := range map[string]string{"auto": "192.0.2.1", "host": "192.0.2.1", "alloc": "10.0.0.2"} {
		if host, port, err := on.place("http", mode); err != nil || host != want || (port == 80) != (mode == "alloc") {
			t.Errorf("address_mode %q: %s port %d, %v; want %s", mode, host, port, err, want)
		}
	}
}
