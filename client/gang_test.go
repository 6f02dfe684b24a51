package client

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/driver"
	execdriver "github.com/muster-sched/muster/client/driver/exec"
	"github.com/muster-sched/muster/client/driver/rawexec"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/structs"
)

// TestGangMembersStartTogether runs two members of a gang as real processes. No task starts before the first member's
// agent has reserved a port and the servers have sent it to all members; a new epoch ends the tasks and starts them
// again with the new data; tasks started for an epoch keep it when the agent restarts.
func TestGangMembersStartTogether(t *testing.T) {
	srv, cfg := processNode(t)
	a := start(t, srv, cfg)

	job := clientfake.Job("train", structs.JobBatch, sh("main", `echo "rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK epoch=$MUSTER_GANG_EPOCH master=$MASTER_ADDR:$MASTER_PORT restarts=$MUSTER_RESTART_COUNT/$MUSTER_RESTART_REASON"; trap 'exit 0' TERM; while :; do sleep 0.05; done`))
	g := job.Groups[0]
	g.Count, g.Gang = 2, &structs.Gang{}
	g.Launch = &structs.Launch{Mode: structs.LaunchRank, Ranks: 2}
	one, two := srv.Place(a.ID(), job), srv.Place(a.ID(), job)
	member := func(id structs.AllocID) structs.RosterMember {
		return structs.RosterMember{Alloc: id, Node: a.ID(), Name: "n1", Address: "127.0.0.1"}
	}
	ro := structs.Roster{Namespace: job.Namespace, JobID: job.ID, Group: "g", Epoch: 1, Reason: structs.RosterPlaced,
		Members: []structs.RosterMember{member(one), member(two)}}
	srv.Roster(ro)

	reported := func(epoch uint64) (port int) {
		srv.Wait(t, fmt.Sprintf("a port for epoch %d", epoch), func() bool {
			for _, o := range srv.Seen(one) {
				if o.GangEpoch == epoch && o.GangPort != 0 {
					port = o.GangPort
				}
			}
			return port != 0
		})
		return port
	}
	ro.Port = reported(1)
	if _, err := net.Listen("tcp", fmt.Sprintf(":%d", ro.Port)); err == nil {
		t.Errorf("port %d was promised to the gang and anybody can take it", ro.Port)
	}
	if ro.Port < 61000 {
		t.Errorf("port %d is one that the kernel gives to outgoing connections", ro.Port)
	}
	time.Sleep(100 * time.Millisecond) // nothing starts in this time
	for _, id := range []structs.AllocID{one, two} {
		if c := srv.Alloc(id).Client; c != structs.ClientPending {
			t.Fatalf("a member is %s before the gang has a port", c)
		}
	}
	srv.Roster(ro)
	back := srv.Back(a.ID())
	want := func(id structs.AllocID, lines ...string) {
		t.Helper()
		readLog(t, back, id, "stdout", func(s string) bool {
			for _, l := range lines {
				if !strings.Contains(s, l+"\n") {
					return false
				}
			}
			return true
		})
	}
	master := fmt.Sprintf("epoch=1 master=127.0.0.1:%d restarts=/", ro.Port)
	want(one, "0: rank=0/4 local=0 "+master, "1: rank=1/4 local=1 "+master)
	want(two, "2: rank=2/4 local=0 "+master, "3: rank=3/4 local=1 "+master)
	b, err := os.ReadFile(filepath.Join(cfg.Storage.DataDir, "allocs", two.String(), "main", "muster.hostfile"))
	if err != nil || string(b) != "127.0.0.1 slots=4\n" {
		t.Errorf("hostfile %q, %v", b, err)
	}

	// The agent is away while the gang shrinks to its second member.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	srv.Stop(one)
	ro.Epoch, ro.Port, ro.Members, ro.Reason = 2, 0, ro.Members[1:], structs.RosterLost
	srv.Roster(ro)
	a = start(t, srv, cfg)
	srv.Wait(t, "a port of the second member", func() bool {
		for _, o := range srv.Seen(two) {
			if o.GangEpoch == 2 && o.GangPort != 0 {
				ro.Port = o.GangPort
			}
		}
		return ro.Port != 0
	})
	srv.Roster(ro)
	back = srv.Back(a.ID())
	want(two, fmt.Sprintf("0: rank=0/2 local=0 epoch=2 master=127.0.0.1:%d restarts=1/member_lost", ro.Port))
	srv.Stop(two)
	srv.Wait(t, "the end", func() bool { return srv.Alloc(one).ClientTerminal() && srv.Alloc(two).ClientTerminal() })
}

// TestTasksSeeTheProgram: members of a gang call this program as their remote shell, so exec tasks see it wherever it is
// installed. Tests run from /tmp, which these tasks do not see.
func TestTasksSeeTheProgram(t *testing.T) {
	dir := scratch(t)
	t.Setenv("PATH", strings.Join(slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool { // who tries a build out has it there
		_, err := os.Stat(filepath.Join(dir, "muster"))
		return err == nil
	}), ":"))
	cfg, sup, err := processConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	d := execdriver.New(execdriver.Options{Supervisor: sup})
	if f := d.Fingerprint(t.Context()); !f.Detected {
		t.Skip("not run: " + f.Detail)
	}
	drivers := driver.NewSet(d, rawexec.New(rawexec.Options{Supervisor: sup, Enabled: true}))
	cfg.Host.Drivers = drivers
	cfg.Host.Fingerprinters = machine(fingerprint.Options{Drivers: drivers})
	srv := clientfake.New()
	cfg.Connect = InProcess(srv.InProcess)
	a := start(t, srv, cfg)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // for the tasks' user
		t.Fatal(err)
	}
	// The second task starts when the first runs, which must still see the program then.
	const first = `until [ -e $NOMAD_ALLOC_DIR/data/second ]; do sleep 0.02; done; set -- $OMPI_MCA_plm_rsh_agent; p=$(command -v "$1"); echo "size $(stat -c %s $p)"; [ -w "$p" ] || echo read-only; [ "$(command -v "${p##*/}")" = "$p" ] && echo in PATH; echo "as $(id -un)"`
	const second = `touch $NOMAD_ALLOC_DIR/data/second; exec sleep 600`
	for name, want := range map[string][]string{"exec": {"read-only", "in PATH", "as nobody"}, "raw_exec": {"in PATH", "as root"}} {
		t.Run(name, func(t *testing.T) {
			job := clientfake.Job("mpi-"+name, structs.JobBatch, sh("main", first), sh("second", second))
			for _, task := range job.Groups[0].Tasks {
				task.Driver = name
			}
			job.Groups[0].Tasks[1].Lifecycle = &structs.Lifecycle{Hook: "poststart", Sidecar: true}
			job.Groups[0].Launch = &structs.Launch{Mode: structs.LaunchNode, Ranks: 1, Compat: []string{"mpi"}}
			id := srv.Place(a.ID(), job)
			srv.Wait(t, "the task to run", func() bool { return srv.Alloc(id).Client != structs.ClientPending })
			out := readLog(t, srv.Back(a.ID()), id, "stdout", func(s string) bool { return strings.Contains(s, "as ") })
			for _, w := range append(want, fmt.Sprintf("size %d", st.Size())) {
				if !strings.Contains(out, w+"\n") {
					t.Errorf("the task prints %q, want %q in it", out, w)
				}
			}
		})
	}
}
