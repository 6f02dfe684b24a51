package acl

import (
	"slices"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
)

// Capabilities of namespaces.
const (
	CapDeny           = "deny" // of every rule: it wins over everything else that is granted for the same name
	CapListJobs       = "list-jobs"
	CapParseJob       = "parse-job"
	CapReadJob        = "read-job"
	CapSubmitJob      = "submit-job"
	CapPlanJob        = "plan-job"
	CapDispatchJob    = "dispatch-job"
	CapReadLogs       = "read-logs"
	CapReadFS         = "read-fs"
	CapAllocExec      = "alloc-exec"
	CapAllocNodeExec  = "alloc-node-exec"
	CapAllocLifecycle = "alloc-lifecycle"
	CapReadJobScaling = "read-job-scaling"
	CapScaleJob       = "scale-job"
	CapListScaling    = "list-scaling-policies"
	CapReadScaling    = "read-scaling-policy"
)

// Capabilities of variables, host volumes and queues.
const (
	CapVariableList    = "list"
	CapVariableRead    = "read"
	CapVariableWrite   = "write"
	CapVariableDestroy = "destroy"
	CapMountReadOnly   = "mount-readonly"
	CapMountReadWrite  = "mount-readwrite"
	CapQueueRead       = "read"
	CapQueueSubmit     = "submit"
	CapQueueWrite      = "write"
)

// Word is one word of the policy language. TestWords in package server checks that each of them changes the answer of
// at least one method; a word that would change nothing is not in the table, and Parse refuses it.
type Word struct {
	Rule     string   // the block that may hold it
	Level    bool     // it is the value of "policy"; otherwise it is a member of "capabilities"
	Word     string   //
	Includes []string // capabilities that it grants, too; nil for the levels of rules without capabilities
	Grants   string   // for people
}

var (
	capsRead  = []string{CapListJobs, CapParseJob, CapReadJob, CapReadJobScaling, CapListScaling, CapReadScaling}
	capsScale = []string{CapListScaling, CapReadScaling, CapReadJobScaling, CapScaleJob}
	capsWrite = append(slices.Clone(capsRead), CapScaleJob, CapSubmitJob, CapPlanJob, CapDispatchJob, CapReadLogs, CapReadFS, CapAllocExec, CapAllocLifecycle)
)

const denied = "Nothing, whatever else is granted for the same name."

// Words is the policy language, in the order of its reference.
var Words = []Word{
	{"namespace", true, "read", capsRead, "Jobs, allocations, evaluations and services can be read."},
	{"namespace", true, "write", capsWrite, "Jobs can also be submitted, changed and stopped; their logs and files can be read."},
	{"namespace", true, "scale", capsScale, "Groups can be scaled. An autoscaler needs this."},
	{"namespace", true, CapDeny, []string{CapDeny}, "Nothing, variables included."},
	{"namespace", false, CapListJobs, nil, "List jobs, waiting jobs, accounting records and decisions."},
	{"namespace", false, CapParseJob, nil, "Have a server parse a job file."},
	{"namespace", false, CapReadJob, nil, "Read jobs, allocations, evaluations and services, and follow their events."},
	{"namespace", false, CapSubmitJob, []string{CapPlanJob}, "Submit, change, revert, stop, hold and requeue jobs."},
	{"namespace", false, CapPlanJob, nil, "Plan a job."},
	{"namespace", false, CapDispatchJob, nil, "Dispatch parameterized jobs."},
	{"namespace", false, CapReadLogs, nil, "Read the logs of tasks."},
	{"namespace", false, CapReadFS, nil, "Read the files of allocations."},
	{"namespace", false, CapAllocExec, nil, "Run commands inside tasks and reach their ports (`alloc port-forward`)."},
	{"namespace", false, CapAllocNodeExec, nil, "With `alloc-exec`: also inside tasks that run without isolation, and to ports of allocations with such a task."},
	{"namespace", false, CapAllocLifecycle, nil, "Stop, restart, signal, suspend and checkpoint allocations."},
	{"namespace", false, CapReadJobScaling, nil, "Read the counts of a job's groups."},
	{"namespace", false, CapScaleJob, nil, "Change the counts of a job's groups."},
	{"namespace", false, CapListScaling, nil, "List scaling policies."},
	{"namespace", false, CapReadScaling, nil, "Read a scaling policy."},
	{"namespace", false, CapDeny, nil, "Nothing, variables included."},

	{"variables", false, CapVariableList, nil, "See the paths."},
	{"variables", false, CapVariableRead, []string{CapVariableList}, "Read the variables."},
	{"variables", false, CapVariableWrite, []string{CapVariableList}, "Write the variables."},
	{"variables", false, CapVariableDestroy, []string{CapVariableList}, "Delete the variables."},
	{"variables", false, CapDeny, nil, denied},

	{"host_volume", true, "read", []string{CapMountReadOnly}, "Jobs may mount the volume read-only."},
	{"host_volume", true, "write", []string{CapMountReadOnly, CapMountReadWrite}, "Jobs may mount the volume."},
	{"host_volume", true, CapDeny, []string{CapDeny}, denied},
	{"host_volume", false, CapMountReadOnly, nil, "Submit jobs that mount the volume with `read_only = true`."},
	{"host_volume", false, CapMountReadWrite, []string{CapMountReadOnly}, "Submit jobs that mount the volume."},
	{"host_volume", false, CapDeny, nil, denied},

	{"queue", true, "read", []string{CapQueueRead}, "The queue can be read, and nothing else."},
	{"queue", true, "submit", []string{CapQueueRead, CapQueueSubmit}, "Jobs can be submitted to the queue."},
	{"queue", true, "write", []string{CapQueueRead, CapQueueSubmit, CapQueueWrite}, "The queue can also be changed and deleted."},
	{"queue", true, CapDeny, []string{CapDeny}, denied},
	{"queue", false, CapQueueRead, nil, "Read the queue, its use, and reservations for it."},
	{"queue", false, CapQueueSubmit, []string{CapQueueRead}, "Submit, plan, revert, dispatch, launch and scale jobs of the queue."},
	{"queue", false, CapQueueWrite, []string{CapQueueRead}, "Change and delete the queue."},
	{"queue", false, CapDeny, nil, denied},

	{"node_pool", true, "read", []string{"read"}, "The pool and its jobs can be read."},
	{"node_pool", true, "write", []string{"read", "write", "delete"}, "The pool can be changed and deleted."},
	{"node_pool", true, CapDeny, []string{CapDeny}, denied},
	{"node_pool", false, "read", nil, "Read the pool and its jobs; its nodes with `node` read."},
	{"node_pool", false, "write", nil, "Create and change the pool."},
	{"node_pool", false, "delete", nil, "Delete the pool."},
	{"node_pool", false, CapDeny, nil, denied},

	{"quota", true, "read", nil, "Read all quotas and their use."},
	{"quota", true, "write", nil, "Change and delete quotas."},
	{"quota", true, CapDeny, nil, "No quota but those of the caller's own namespaces, whatever `operator` says."},

	{"node", true, "read", nil, "Read nodes and their allocations."},
	{"node", true, "write", nil, "Drain, taint and purge nodes, and change their metadata."},
	{"node", true, CapDeny, nil, "Nothing, whatever another policy says."},
	{"agent", true, "read", nil, "Read agents, their members and logs."},
	{"agent", true, "write", nil, "Join and remove servers, change gossip keys, take profiles."},
	{"agent", true, CapDeny, nil, "Nothing, whatever another policy says."},
	{"operator", true, "read", nil, "Read raft, autopilot, the scheduler configuration, all queues and quotas."},
	{"operator", true, "write", nil, "Change them, and reservations."},
	{"operator", true, CapDeny, nil, "Nothing, whatever another policy says."},
}

// withoutEffect says why Parse refuses words of Nomad's language that would change nothing here.
var withoutEffect = map[string]string{
	"sentinel-override": "there are no Sentinel policies", "submit-recommendation": "there are no recommendations",
	"csi-register-plugin": noPlugins, "csi-write-volume": noPlugins, "csi-read-volume": noPlugins, "csi-list-volume": noPlugins, "csi-mount-volume": noPlugins,
	"host-volume-create": noDynamic, "host-volume-register": noDynamic, "host-volume-read": noDynamic, "host-volume-write": noDynamic, "host-volume-delete": noDynamic,
}

const (
	noPlugins = "there are no storage plugins"
	noDynamic = "host volumes are configured on the nodes; use host_volume rules for who may mount them"
)

// lookup finds a word.
func lookup(rule, word string, level bool) *Word {
	for i := range Words {
		if w := &Words[i]; w.Rule == rule && w.Level == level && w.Word == word {
			return w
		}
	}
	return nil
}

// wordsOf lists the words of a rule, for errors.
func wordsOf(rule string, level bool) (out []string) {
	for _, w := range Words {
		if w.Rule == rule && w.Level == level {
			out = append(out, w.Word)
		}
	}
	return out
}

// oneOf ends an error about an unknown word: with the one that is meant, and all that there are.
func oneOf(word string, known []string) string {
	if meant := suggest.DidYouMean(word, known); meant != "" {
		return meant + " Want one of " + strings.Join(known, ", ")
	}
	return "; want one of " + strings.Join(known, ", ")
}
