//go:build e2e

package gang

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// live lists the allocations of a job that run, and waits until there are so many.
func live(f *harness.Fleet, w harness.Work, n int) []harness.Alloc {
	f.T.Helper()
	var out []harness.Alloc
	for _, a := range f.Running(w, n) {
		if a.ClientStatus == "running" {
			out = append(out, a)
		}
	}
	return out
}

// starts reads what the members of a gang wrote when they were started: "epoch 2: rank 0 of 3", oldest first.
func starts(f *harness.Fleet, dir string, index int) []string {
	b, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint(index)))
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// tells returns the script of a member that records each start in its file.
func tells(dir, then string) string {
	return fmt.Sprintf(`echo "epoch $MUSTER_GANG_EPOCH: rank $MUSTER_NODE_RANK of $MUSTER_NNODES" >> %s/$NOMAD_ALLOC_INDEX; %s`, dir, then)
}

// soon lets jobs give way after a second of running.
func soon(f *harness.Fleet) {
	f.Must("queue", "apply", f.File("queue.hcl", "queue \"default\" {\n  preempt             = \"priority\"\n  preempt_min_runtime = \"1s\"\n}\n"))
}

// TestElastic: a gang of up to three members has one while others use the GPUs, grows when they end, restarting all
// members with a new epoch, and shrinks before any other job is preempted.
func TestElastic(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "4xH100"})
	soon(f)
	dir := t.TempDir()
	holder := harness.Work{ID: "holder", GPUs: "count = 2"}
	victim := harness.Work{ID: "victim", Settings: "priority = 10\n  preemptible = true", GPUs: "count = 1"}
	grown := harness.Work{ID: "grown", Settings: "priority = 50", Group: "count = 1\n    gang = {}\n    elastic = { min = 1, max = 3 }\n    checkpoint = { signal = \"SIGUSR1\", grace = \"30s\" }",
		GPUs: "count = 1", Script: "trap 'exit 0' USR1; " + tells(dir, "while true; do sleep 0.1; done")}
	for _, w := range []harness.Work{holder, victim, grown} {
		f.Run(w)
		f.Running(w, 1)
	}
	said := func(epoch, members int) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, fmt.Sprintf("%d members start with epoch %d", members, epoch), func() (bool, string) {
			text, ranks := "", map[string]bool{}
			for i := range members {
				got := starts(f, dir, i)
				text += strings.Join(got, ", ") + "\n"
				var e, rank, of int
				if n, _ := fmt.Sscanf(got[len(got)-1], "epoch %d: rank %d of %d", &e, &rank, &of); n == 3 && e == epoch && rank < members && of == members {
					ranks[fmt.Sprint(rank)] = true
				}
			}
			return len(ranks) == members, text
		})
	}
	said(1, 1)
	first := live(f, grown, 1)[0]

	f.Stop(holder)
	live(f, grown, 3)
	said(2, 3)
	kept := live(f, victim, 1)[0]

	urgent := harness.Work{ID: "urgent", Settings: "priority = 90", GPUs: "count = 2"}
	f.Run(urgent)
	f.Running(urgent, 1)
	if a := live(f, grown, 1)[0]; a.ID != first.ID {
		t.Errorf("the member that is left is %s, the first one was %s", a.Name, first.Name)
	}
	said(3, 1)
	if out := f.Must("job", "status", "grown"); !strings.Contains(out, "grown 1 time, shrunk 1 time; last ") || !strings.Contains(out, "from 3 to 1 member") {
		t.Errorf("the resizes are not in:\n%s", out)
	}
	if got, want := strings.TrimSpace(f.Must("operator", "decisions", "-kind", "resize", "-t", "{{range .}}{{.JobID}} +{{.Places}} -{{.Stops}}; {{end}}")), "grown +2 -0; grown +0 -2;"; got != want {
		t.Errorf("the decision log has the resizes %q, want %q", got, want)
	}
	if out := f.Must("operator", "metrics", "-format", "prometheus"); !strings.Contains(out, "\nmuster_server_gang_resizes_total 2\n") {
		t.Error("the metrics do not count two resizes")
	}
	as, err := f.API.Allocs("grown")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		told := notices(a)
		if a.ID != first.ID && (a.DesiredStatus != "stop" || len(told) != 1 || !strings.Contains(told[0], "it is preempted")) {
			t.Errorf("%s was given back, and is to %s; it was told %q", a.Name, a.DesiredStatus, told)
		}
		if a.ID == first.ID && (len(told) == 0 || !strings.Contains(told[len(told)-1], "restarts with other members")) {
			t.Errorf("the member that grew and shrank was told %q", told)
		}
	}
	if a := live(f, victim, 1)[0]; a.ID != kept.ID || a.DesiredStatus != "run" {
		t.Errorf("the job that may be preempted was: %+v", a)
	}
	f.Stop(urgent, victim, grown)
}

// started waits until both members of a gang have noted their first start: a notice before the trap is set would end them.
func started(t *testing.T, f *harness.Fleet, dir string) {
	t.Helper()
	for i := range 2 {
		harness.Eventually(t, 60*time.Second, "members note their start", func() (bool, string) {
			got := starts(f, dir, i)
			return got[0] != "", strings.Join(got, "\n")
		})
	}
}

// notices returns the texts of the checkpoint notices that an allocation's task got.
func notices(a harness.Alloc) (out []string) {
	for _, e := range a.TaskStates["main"].Events {
		if e.Type == "Checkpoint" {
			out = append(out, e.DisplayMessage)
		}
	}
	return out
}

// TestGangMoves: when one node of a gang drains, every member is notified to save its state, and the gang continues
// elsewhere from the checkpoints of all.
func TestGangMoves(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "1xH100"}, harness.FleetNode{Name: "two", GPUs: "1xH100"}, harness.FleetNode{Name: "three", GPUs: "1xH100"})
	dir := t.TempDir()
	gang := harness.Work{ID: "gang", GPUs: "count = 1",
		Group:  "count = 2\n    gang = {}\n    checkpoint = { signal = \"SIGUSR1\", grace = \"30s\" }",
		Script: fmt.Sprintf(`s=%s/state$NOMAD_ALLOC_INDEX; trap 'echo saved > $s; exit 0' USR1; %s while true; do sleep 0.1; done`, dir, tells(dir, `[ -f $s ] && echo "goes on" >> `+dir+`/$NOMAD_ALLOC_INDEX;`))}
	f.Run(gang)
	before := live(f, gang, 2)
	started(t, f, dir)
	f.Must("node", "drain", "-enable", "-yes", "-detach", "-deadline", "1s", before[1].NodeID)
	for i := range 2 {
		harness.Eventually(t, 60*time.Second, "members go on from what they saved", func() (bool, string) {
			got := starts(f, dir, i)
			return len(got) == 3 && got[2] == "goes on", strings.Join(got, "\n")
		})
	}
	for _, a := range live(f, gang, 2) {
		if a.NodeID == before[1].NodeID {
			t.Errorf("%s is on the node that drains", a.Name)
		}
	}
	as, err := f.API.Allocs("gang")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		if told := notices(a); (a.ID == before[0].ID || a.ID == before[1].ID) && (len(told) != 1 || !strings.Contains(told[0], "a node of its gang drains")) {
			t.Errorf("%s on %s was told %q", a.Name, a.NodeName, told)
		}
	}
	f.Stop(gang)
}

// TestGangGivesWay: a job that needs one node of two takes the place of a gang that has both. Every member is notified,
// saves its state and ends; all of them come back with a new epoch and continue from their checkpoints.
func TestGangGivesWay(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "4xH100"}, harness.FleetNode{Name: "two", GPUs: "4xH100"})
	soon(f)
	dir := t.TempDir()
	gang := harness.Work{ID: "gang", Settings: "priority = 20", GPUs: "count = 4",
		Group:  "count = 2\n    gang = {}\n    checkpoint = { signal = \"SIGUSR1\", on = [\"preempt\"], grace = \"30s\" }",
		Script: fmt.Sprintf(`s=%s/state$NOMAD_ALLOC_INDEX; trap 'echo saved > $s; exit 0' USR1; %s while true; do sleep 0.1; done`, dir, tells(dir, `[ -f $s ] && echo "goes on" >> `+dir+`/$NOMAD_ALLOC_INDEX;`))}
	f.Run(gang)
	before := live(f, gang, 2)
	started(t, f, dir)
	urgent := harness.Work{ID: "urgent", Settings: "priority = 90", GPUs: "count = 4", Script: fmt.Sprintf("while [ ! -f %s/end ]; do sleep 0.1; done", dir)}
	f.Run(urgent)
	f.Running(urgent, 1)
	as, err := f.API.Allocs("gang")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		told := notices(a)
		if a.DesiredStatus != "evict" || len(told) == 0 || !strings.Contains(told[len(told)-1], "preempted") {
			t.Errorf("%s is to %s; it was told %q", a.Name, a.DesiredStatus, told)
		}
	}
	if len(as) != 2 {
		t.Errorf("while another has one of its nodes, the gang has %d allocations, want the two that gave way", len(as))
	}
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nodes := map[string]bool{}
	for _, a := range live(f, gang, 2) {
		nodes[a.NodeName] = true
		if a.ID == before[0].ID || a.ID == before[1].ID {
			t.Errorf("%s runs again", a.ID)
		}
	}
	if len(nodes) != 2 {
		t.Errorf("the gang is back on %v", nodes)
	}
	epochs := map[string]bool{}
	for i := range 2 {
		harness.Eventually(t, 60*time.Second, "members go on from what they saved", func() (bool, string) {
			got := starts(f, dir, i)
			if got[len(got)-1] != "goes on" {
				return false, strings.Join(got, "\n")
			}
			epoch, _, _ := strings.Cut(got[len(got)-2], ":")
			epochs[epoch] = true
			return len(got) == 3 && !strings.HasPrefix(got[0], epoch), strings.Join(got, "\n")
		})
	}
	if len(epochs) != 1 {
		t.Errorf("the members are of %v", epochs)
	}
	f.Stop(gang)
}
