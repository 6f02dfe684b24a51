package taskenv

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// Gang is what a task's environment contains about its gang.
type Gang struct {
	Roster *structs.Roster
	Rank   int             // of the task's allocation among the members
	Launch *structs.Launch // or nil
	Muster string          // the program, for launchers that call it as their remote shell
}

// hostfile is the MPI hostfile in the task's directory.
const hostfile = "muster.hostfile"

// span returns the first rank of a member and the number of its ranks; -1 returns the total.
func (g *Gang) span(member int) (first, n int) {
	for i := range g.Roster.Members {
		k := g.Launch.RanksOf(g.Roster.Members[i].GPUs)
		switch {
		case i < member:
			first += k
		case i == member, member < 0:
			n += k
		}
	}
	return first, n
}

// GPUsByRank is the variable that makes the launcher of ranks show each rank only its own GPUs.
const GPUsByRank = "MUSTER_GPUS_BY_RANK"

// gang sets the variables about the task's place in its gang, for common launchers: torchrun reads PET_*, programs
// started rank by rank read RANK and related ones, and SLURM_* and MPI's are set on request.
func (e *Env) gang(g *Gang, in *Input) {
	ro := g.Roster
	set := func(name, value string) { e.made[name] = value }
	num := func(name string, n int) { e.made[name] = strconv.Itoa(n) }
	names := make([]string, len(ro.Members))
	for i := range ro.Members {
		names[i] = ro.Members[i].Name
	}
	id := gangID(ro)
	first, ranks := g.span(g.Rank)
	_, world := g.span(-1)
	set("MUSTER_GANG_ID", id)
	set("MUSTER_GANG_EPOCH", strconv.FormatUint(ro.Epoch, 10))
	num("MUSTER_GANG_SIZE", len(ro.Members))
	num("MUSTER_NODE_RANK", g.Rank)
	num("MUSTER_NNODES", len(ro.Members))
	set("MUSTER_NODELIST", strings.Join(names, ","))
	num("MUSTER_RANKS", ranks)
	num("MUSTER_FIRST_RANK", first)
	num("MUSTER_WORLD_SIZE", world)
	if in.TaskDir != "" {
		set("MUSTER_HOSTFILE", filepath.Join(filepath.Dir(in.TaskDir), hostfile))
	}
	if in.Node.HTTPAddr != "" { // of this node's agent, for muster rsh
		scheme := "http://"
		if in.Node.TLSEnabled {
			scheme = "https://"
		}
		set("MUSTER_ADDR", scheme+in.Node.HTTPAddr)
	}
	e.reach(g.Muster)
	addr, port := ro.Members[0].Address, strconv.Itoa(ro.Port)
	set("MASTER_ADDR", addr)
	set("MASTER_PORT", port)
	if g.Launch.InRanks() {
		num("WORLD_SIZE", world)
		num("LOCAL_WORLD_SIZE", ranks)
		num("GROUP_RANK", g.Rank)
		num("NODE_RANK", g.Rank)
		if _, own := in.Task.Env["CUDA_VISIBLE_DEVICES"]; g.Launch.GPUsByRank() && !own {
			set(GPUsByRank, "1")
		}
	} else {
		num("PET_NNODES", len(ro.Members))
		num("PET_NODE_RANK", g.Rank)
		num("PET_NPROC_PER_NODE", ranks)
		set("PET_MASTER_ADDR", addr)
		set("PET_MASTER_PORT", port)
		set("PET_RDZV_ENDPOINT", joinHostPort(addr, ro.Port))
		set("PET_RDZV_ID", id+"."+strconv.FormatUint(ro.Epoch, 10))
	}
	if g.Launch == nil {
		return
	}
	for _, c := range g.Launch.Compat {
		switch c {
		case "slurm":
			e.slurm(g, in, names, ranks, first, world)
		case "mpi":
			// mpirun gives its value to its daemons on other nodes, where the directory of the allocation is another one.
			agent := g.Muster
			if in.TaskDir != "" && strings.HasPrefix(agent, filepath.Dir(filepath.Dir(in.TaskDir))+"/") {
				agent = filepath.Base(agent)
			}
			set("OMPI_MCA_plm_rsh_agent", agent+" rsh")
			set("OMPI_MCA_orte_default_hostfile", e.made["MUSTER_HOSTFILE"])
			if slices.Contains(g.Launch.Compat, "slurm") { // its variables would make mpirun use Slurm's hosts and look for srun
				set("OMPI_MCA_plm", "^slurm")
				set("OMPI_MCA_ras", "^slurm")
			}
			set("HYDRA_LAUNCHER", "ssh")
			set("HYDRA_LAUNCHER_EXEC", g.Muster+" rsh")
			set("HYDRA_HOST_FILE", e.made["MUSTER_HOSTFILE"])
		}
	}
}

// reach adds the directory of the program to the end of PATH, so that "muster rsh" works wherever it is installed. An
// image keeps its own PATH, and so does a task that sets it, unless mpirun needs the program.
func (e *Env) reach(program string) {
	if path := e.made["PATH"]; path != "" && filepath.IsAbs(program) {
		if dir := filepath.Dir(program); !slices.Contains(filepath.SplitList(path), dir) {
			e.made["PATH"] = path + ":" + dir
		}
	}
}

// slurm sets the variables that programs written for srun expect. Their job ids are numbers: here the index at which
// the job was created or, where that is not known, the gang was first placed.
func (e *Env) slurm(g *Gang, in *Input, names []string, ranks, first, world int) {
	ro := g.Roster
	set := func(name, value string) { e.made["SLURM_"+name] = value }
	list, n := strings.Join(names, ","), strconv.Itoa
	job := strconv.FormatUint(uint64(cmp.Or(in.Alloc.Job.CreateIndex, ro.CreateIndex)), 10)
	for _, name := range []string{"JOB_ID", "JOBID"} {
		set(name, job)
	}
	set("JOB_NAME", ro.JobID)
	for _, name := range []string{"NNODES", "JOB_NUM_NODES"} {
		set(name, n(len(ro.Members)))
	}
	for _, name := range []string{"NODELIST", "JOB_NODELIST"} {
		set(name, list)
	}
	set("NODEID", n(g.Rank))
	set("STEP_ID", "0")
	set("LAUNCH_NODE_IPADDR", ro.Members[0].Address)
	if gpus := ro.Members[g.Rank].GPUs; gpus > 0 {
		set("GPUS_ON_NODE", strconv.FormatInt(gpus, 10))
	}
	if cores := int(in.Task.Resources.Cores); cores > 0 { // shares of CPU are no count
		set("CPUS_ON_NODE", n(cores))
		set("JOB_CPUS_PER_NODE", times(cores, len(ro.Members)))
		per := cores // of one of what Slurm calls tasks: a rank, or the launcher
		if g.Launch.InRanks() && ranks > 0 {
			per /= ranks
		}
		if per > 0 {
			set("CPUS_PER_TASK", n(per))
		}
	}
	if mem := in.Task.Resources.MemoryMiB; mem > 0 {
		set("MEM_PER_NODE", strconv.FormatInt(mem, 10))
	}
	if pool := in.Alloc.Job.NodePool; pool != "" {
		set("JOB_PARTITION", string(pool))
	}
	// Where the job was submitted from is not known; Slurm starts scripts there, so it is where the task starts.
	if dir := e.Replace(in.Task.WorkDir); dir != "" {
		set("SUBMIT_DIR", dir)
	} else if in.TaskDir != "" {
		set("SUBMIT_DIR", in.TaskDir)
	}
	if count, _ := restarted(in); count > 0 {
		set("RESTART_COUNT", strconv.FormatInt(count, 10))
	}
	if g.Launch.InRanks() { // the launcher of ranks adds PROCID and LOCALID
		set("NTASKS", n(world))
		set("NPROCS", n(world))
		set("NTASKS_PER_NODE", n(ranks))
		set("TASKS_PER_NODE", tasksPerNode(g))
		return
	}
	// One launcher a node, as srun --ntasks-per-node=1 starts it.
	set("NTASKS", n(len(ro.Members)))
	set("NPROCS", n(len(ro.Members)))
	set("NTASKS_PER_NODE", "1")
	set("TASKS_PER_NODE", "1(x"+n(len(ro.Members))+")")
	set("PROCID", n(g.Rank))
	set("LOCALID", "0")
}

// tasksPerNode formats the number of ranks of each member, with equal neighbours together: "8(x2),4".
func tasksPerNode(g *Gang) string {
	var parts []string
	for i := 0; i < len(g.Roster.Members); {
		n := g.Launch.RanksOf(g.Roster.Members[i].GPUs)
		k := i + 1
		for k < len(g.Roster.Members) && g.Launch.RanksOf(g.Roster.Members[k].GPUs) == n {
			k++
		}
		parts = append(parts, times(n, k-i))
		i = k
	}
	return strings.Join(parts, ",")
}

// times formats a number that applies to several nodes: "8(x2)".
func times(n, nodes int) string {
	if nodes > 1 {
		return strconv.Itoa(n) + "(x" + strconv.Itoa(nodes) + ")"
	}
	return strconv.Itoa(n)
}

// gangID identifies a gang in characters that programs may use in file names and keys.
func gangID(ro *structs.Roster) string {
	clean := func(r rune) rune {
		if r == '-' || r == '_' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}
	return strings.Map(clean, ro.Namespace+"."+ro.JobID+"."+string(ro.Group))
}
