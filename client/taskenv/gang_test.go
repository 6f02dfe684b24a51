package taskenv

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// gangInput returns the second of three members with 2, 2 and 4 GPUs.
func gangInput(l *structs.Launch) Input {
	in := input()
	in.Gang = &Gang{Rank: 1, Launch: l, Muster: "/bin/muster", Roster: &structs.Roster{Namespace: "team", JobID: "shop/dispatch-1", Group: "front", Epoch: 3, Port: 61234, CreateIndex: 77,
		Restarts: 2, Reason: structs.RosterLost, Members: []structs.RosterMember{
			{Name: "n0", Address: "10.0.0.1", GPUs: 2}, {Name: "n1", Address: "10.0.0.2", GPUs: 2}, {Name: "n2", Address: "10.0.0.3", GPUs: 4}}}}
	return in
}

func TestGangVariables(t *testing.T) {
	common := map[string]string{
		"MUSTER_GANG_ID": "team.shop_dispatch-1.front", "MUSTER_GANG_EPOCH": "3", "MUSTER_GANG_SIZE": "3", "MUSTER_NODE_RANK": "1", "MUSTER_NNODES": "3",
		"MUSTER_NODELIST": "n0,n1,n2", "MUSTER_HOSTFILE": "/a/web/muster.hostfile", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "61234",
		"MUSTER_RANKS": "2", "MUSTER_FIRST_RANK": "2", "MUSTER_WORLD_SIZE": "8", "MUSTER_RESTART_COUNT": "2", "MUSTER_RESTART_REASON": "member_lost",
	}
	for name, c := range map[string]struct {
		launch *structs.Launch
		want   map[string]string // "-" for a variable that must not be set
	}{
		"a gang without a launch block": {nil, map[string]string{"PET_NNODES": "3", "SLURM_JOB_ID": "-", "RANK": "-", "OMPI_MCA_plm_rsh_agent": "-"}},
		"a launcher on each node": {&structs.Launch{Mode: "node", Compat: []string{"torchrun", "mpi"}}, map[string]string{
			"PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "61234",
			"PET_RDZV_ENDPOINT": "10.0.0.1:61234", "PET_RDZV_ID": "team.shop_dispatch-1.front.3", "WORLD_SIZE": "-", "SLURM_JOB_ID": "-",
			"OMPI_MCA_plm_rsh_agent": "/bin/muster rsh", "OMPI_MCA_orte_default_hostfile": "/a/web/muster.hostfile", "OMPI_MCA_plm": "-", "OMPI_MCA_ras": "-"}},
		"mpirun, and srun's variables": {&structs.Launch{Mode: "node", Compat: []string{"slurm", "mpi"}}, map[string]string{
			"SLURM_JOB_ID": "77", "OMPI_MCA_plm_rsh_agent": "/bin/muster rsh", "OMPI_MCA_plm": "^slurm", "OMPI_MCA_ras": "^slurm"}},
		"rank by rank": {&structs.Launch{Mode: "rank"}, map[string]string{
			"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "PET_NNODES": "-", "RANK": "-"}},
		"as srun does": {&structs.Launch{Mode: "rank", Compat: []string{"slurm"}}, map[string]string{
			"SLURM_JOB_ID": "77", "SLURM_NNODES": "3", "SLURM_NODELIST": "n0,n1,n2", "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "2(x2),4",
			"SLURM_NODEID": "1", "SLURM_GPUS_ON_NODE": "2", "SLURM_RESTART_COUNT": "2", "SLURM_PROCID": "-", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}},
		"as srun does, one a node": {&structs.Launch{Compat: []string{"slurm"}}, map[string]string{
			"SLURM_NTASKS": "3", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "1(x3)", "PET_NODE_RANK": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			vars := New(gangInput(c.launch)).Vars()
			for _, m := range []map[string]string{common, c.want} {
				for k, want := range m {
					got, set := vars[k]
					if want == "-" && set || want != "-" && got != want {
						t.Errorf("%s is %q, want %q", k, got, want)
					}
				}
			}
		})
	}
	t.Run("what Slurm says of resources", func(t *testing.T) {
		for _, c := range []struct {
			launch  structs.Launch
			cores   int64
			workDir string
			want    map[string]string
		}{
			{structs.Launch{Mode: "rank"}, 16, "", map[string]string{"CPUS_PER_TASK": "8", "CPUS_ON_NODE": "16", "JOB_CPUS_PER_NODE": "16(x3)", "SUBMIT_DIR": "/a/web/local"}},
			{structs.Launch{Mode: "rank"}, 5, "/home/${NOMAD_JOB_ID}", map[string]string{"CPUS_PER_TASK": "2", "SUBMIT_DIR": "/home/shop"}},
			{structs.Launch{Mode: "rank"}, 1, "", map[string]string{"CPUS_PER_TASK": "", "CPUS_ON_NODE": "1"}},
			{structs.Launch{}, 16, "", map[string]string{"CPUS_PER_TASK": "16", "JOB_CPUS_PER_NODE": "16(x3)", "MEM_PER_NODE": "256", "JOB_PARTITION": "gpu", "GPUS_ON_NODE": "2", "LOCALID": "0"}},
			{structs.Launch{}, 0, "", map[string]string{"CPUS_PER_TASK": "", "CPUS_ON_NODE": "", "JOB_CPUS_PER_NODE": ""}},
		} {
			c.launch.Compat = []string{"slurm"}
			in := gangInput(&c.launch)
			in.Task.Resources.Cores, in.Task.WorkDir, in.Alloc.Job.NodePool = c.cores, c.workDir, "gpu"
			e := New(in)
			for k, want := range c.want {
				if got := e.Get("SLURM_" + k); got != want {
					t.Errorf("%+v with %d cores: SLURM_%s is %q, want %q", c.launch, c.cores, k, got, want)
				}
			}
		}
	})
	t.Run("the user's own stay", func(t *testing.T) {
		in := gangInput(nil)
		in.Task.Env["MASTER_PORT"] = "29500"
		if got := New(in).Get("MASTER_PORT"); got != "29500" {
			t.Errorf("MASTER_PORT is %q", got)
		}
	})
	t.Run("ranks that are asked for", func(t *testing.T) {
		in := gangInput(&structs.Launch{Mode: "rank", Ranks: 5})
		if got := New(in).Get("MUSTER_FIRST_RANK"); got != "5" {
			t.Errorf("the first rank is %s", got)
		}
	})
	t.Run("GPUs by rank", func(t *testing.T) {
		for _, c := range []struct {
			launch structs.Launch
			own    string
			want   string
		}{
			{structs.Launch{Mode: "rank"}, "", "1"}, {structs.Launch{Mode: "rank", GPUs: "own"}, "", "1"},
			{structs.Launch{Mode: "rank", GPUs: "all"}, "", ""}, {structs.Launch{Mode: "node"}, "", ""}, {structs.Launch{Mode: "rank"}, "0", ""},
		} {
			in := gangInput(&c.launch)
			if c.own != "" {
				in.Task.Env = map[string]string{"CUDA_VISIBLE_DEVICES": c.own}
			}
			if got := New(in).Get(GPUsByRank); got != c.want {
				t.Errorf("%+v with own %q: %q, want %q", c.launch, c.own, got, c.want)
			}
		}
	})
	t.Run("started again here", func(t *testing.T) {
		in := gangInput(nil)
		in.TaskRestarts, in.TaskRestartReason = 1, "failed"
		if e := New(in); e.Get("MUSTER_RESTART_COUNT") != "3" || e.Get("MUSTER_RESTART_REASON") != "failed" {
			t.Errorf("restarts %s, %s", e.Get("MUSTER_RESTART_COUNT"), e.Get("MUSTER_RESTART_REASON"))
		}
	})
}

// TestFabricNeverWins checks that what a node says of its network stands under what the job says.
func TestFabricNeverWins(t *testing.T) {
	in := gangInput(nil)
	in.Fabric = map[string]string{"NCCL_SOCKET_IFNAME": "=ib0", "GLOO_SOCKET_IFNAME": "ib0", "MASTER_ADDR": "nonsense"}
	in.Task.Env = map[string]string{"GLOO_SOCKET_IFNAME": "eth7"}
	e := New(in)
	if e.Get("NCCL_SOCKET_IFNAME") != "=ib0" || e.Get("GLOO_SOCKET_IFNAME") != "eth7" || e.Get("MASTER_ADDR") == "nonsense" {
		t.Errorf("NCCL %s, Gloo %s, master %s", e.Get("NCCL_SOCKET_IFNAME"), e.Get("GLOO_SOCKET_IFNAME"), e.Get("MASTER_ADDR"))
	}
}
