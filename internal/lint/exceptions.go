package lint

// exception silences one rule at one place.
type exception struct {
	rule  string // "clock", "random", "goroutine", "map-order", "float", "math", "import", "long-file", "todo", "path", "leak"
	where string // directory, file, or file:function
	why   string
}

// exceptions is the whole list.
var exceptions = []exception{
	{"float", "scheduler/model/fixed.go", "the table of a score term is made once from floating point and rounded to millionths"},
	{"map-order", "fsm/state/usage.go:flushUsage", "one write per key into a sorted tree; the delta does not list usage rows"},
	{"map-order", "scheduler/search/ledger.go:ask", "it looks for the least of numbers that are all different"},
	{"map-order", "scheduler/jobdiff/diff.go:flattenValue", "it fills a map whose keys are sorted when the diff is written"},
	{"map-order", "scheduler/suggest/suggest.go:restored", "it fills a map, a driver from a driver of the same name"},
	{"map-order", "fsm/acct.go:exit", "it sets booleans, and keeps the newest of the failed ones by a total order"},
	{"map-order", "internal/pack/pack.go:learn", "it fills a map of what types are written by"},
	{"import", "internal/pack/memory.go", "the only file of its package that uses unsafe; ADR 0014 says what that is worth"},
	{"path", "client/agentstore", "the agent's own directory, which only root enters"},
	{"path", "client/cgroup", "control groups, whose files belong to root"},
	{"path", "client/fingerprint", "it looks at the machine before tasks run"},
	{"path", "client/gpu", "device nodes, and a directory of the agent"},
	{"path", "client/netns", "the agent's directory of networks, and files of the kernel"},
	{"path", "client/procfile", "/proc"},
	{"path", "client/taskfs", "it is the handles: each path is that of a descriptor, or one name in an open directory"},
	{"path", "client/taskfs/swap", "it plays a task, in tests"},
	{"path", "client/allocdir/allocdir.go:Barred", "it only looks at the modes of directories"},
	{"path", "client/allocdir/allocdir.go:Scatter", "the directory of all allocations, whose parents are root's"},
	{"path", "client/artifact/child.go:child", "the child has no rights; its directory came as a descriptor"},
	{"path", "client/client.go:New", "the directories of the agent itself"},
	{"path", "client/identity.go", "a file in the agent's directory"},
	{"path", "client/driver/docker/auth.go", "a file of the operator"},
	{"path", "client/driver/docker/gc.go", "the state directory of the driver, which no task sees"},
	{"path", "client/driver/docker/gpu.go", "device nodes, and the state directory of the driver"},
	{"path", "client/driver/docker/logs.go:open", "positions are in the state directory of the driver"},
	{"path", "client/driver/docker/logs.go:save", "positions are in the state directory of the driver"},
	{"path", "client/driver/docker/pin.go", "places are in the state directory of the driver; what is bound there is held by allocdir.Find"},
	{"path", "client/driver/docker/task.go", "control groups"},
	{"path", "client/driver/fake/fake.go", "it runs nothing"},
	{"path", "client/driver/process/process.go", "the answers word errors; directories are entered and commands executed with the rights of the task's user"},
	{"path", "client/gpu/shim/alive.go", "/proc"},
	{"path", "client/gpu/shim/shim.go:Write", "a directory of the agent"},
	{"path", "client/ranks/logs.go", "it runs inside the task, as the task's user"},
	{"path", "client/runner/gang.go:showProgram", "the program of this process"},
	{"path", "client/runner/network.go:nodeResolver", "the node's resolv.conf"},
	{"path", "client/runner/saved.go", "a thread with the rights of the task's user looks below the root of the task's process"},
	{"path", "client/runner/volumes.go", "host volumes are directories of the operator"},
	{"path", "client/supervisor/client.go", "the state directory of the supervisor, which only root enters; control groups"},
	{"path", "client/supervisor/exec.go", "control groups"},
	{"path", "client/supervisor/guard.go", "the state directory of the supervisor, which only root enters"},
	{"path", "client/supervisor/lease.go", "the state directory of the supervisor, which only root enters"},
	{"path", "client/supervisor/server.go", "the state directory of the supervisor, which only root enters"},
	{"path", "client/supervisor/spares.go", "the state directory of the supervisor, which only root enters"},
	{"path", "client/supervisor/start.go", "the state directory of the supervisor, which only root enters; control groups"},
	{"path", "client/supervisor/task.go", "the state directory of the supervisor, which only root enters"},
	{"path", "client/users/users.go:Home", "it only looks at whose a home directory is"},
	{"leak", "client/taskfs/swap", "it is a part of tests, and During waits for its goroutine"},
}
