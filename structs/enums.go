package structs

// Enums are the values of the settings that have a fixed set of them, without "" for the default. Validation takes the values
// from here, and internal/lint wants a test for each whose outcome depends on it (internal/lint/testdata/values.txt). The
// names are those of fields; settings that the log keeps as Nomad's JSON have the names of wire types. Placement policies are
// listed by scheduler/policy.
var Enums = map[string][]string{
	"Queue.Order":            orderNames(),
	"Queue.Preempt":          {PreemptNone, PreemptPriority, PreemptReclaim, PreemptDeadline, PreemptOrder},
	"Queue.Backfill":         {BackfillNone, BackfillGreedy, BackfillEASY, BackfillSJF, BackfillConservative},
	"Queue.Ends":             {EndsPredicted, EndsLimit},
	"Queue.GPUHoursPeriod":   {PeriodDay, PeriodWeek, PeriodMonth},
	"SchedulerConfig.GPUFit": GPUFits,

	"Job.Type":                 {string(JobService), string(JobBatch), string(JobSystem), string(JobSysBatch)},
	"Parameterized.Payload":    {"optional", "required", "forbidden"},
	"Requeue.On":               RequeueReasons, // or "exit:N"
	"Dependency.When":          {WhenStarted, WhenCompleted, WhenSuccess, WhenFailed, WhenCheckpointed},
	"Dependency.OnTimeout":     {string(OnTimeoutFail), string(OnTimeoutRun)},
	"Toleration.Effect":        {TaintNoSchedule, TaintPreferNoSchedule, TaintNoExecute},
	"Constraint.Operand":       {OperandDistinctHosts, OperandDistinctProperty}, // and those of affinities
	"Affinity.Operand":         {OperandEqual, OperandNotEqual, OperandLess, OperandLessEqual, OperandGreater, OperandGreaterEqual, OperandRegexp, OperandVersion, OperandSemver, OperandSetContains, OperandSetContainsAll, OperandSetContainsAny, OperandIsSet, OperandIsNotSet},
	"Gang.OnFailure":           {GangRestartAll, GangContinue},
	"Topology.Inside":          {"nvlink", "numa"},
	"Topology.Mode":            {TopologyPreferred, TopologyRequired}, // also of NVLink domains
	"Launch.Mode":              {LaunchNode, LaunchRank},
	"Launch.Compat":            {"torchrun", "slurm", "mpi"},
	"Launch.GPUs":              {LaunchGPUsOwn, LaunchGPUsAll},
	"Checkpoint.To":            {"launcher", "ranks"},
	"Checkpoint.On":            {CausePreempt, "limit", CauseDrain, "resize"},
	"Reschedule.DelayFunction": {string(DelayConstant), string(DelayExponential), string(DelayFibonacci)},
	"Restart.Mode":             {"fail", "delay"},
	"Update.HealthCheck":       {HealthByChecks, "task_states", "manual"},
	"Migrate.HealthCheck":      {HealthByChecks, "task_states"},
	"Disconnect.Reconcile":     {"best_score", "keep_original", "keep_replacement", "longest_running"},
	"Scaling.Type":             {"horizontal"},
	"Network.Mode":             {NetworkHost, NetworkNone, NetworkBridge},

	"Lifecycle.Hook":      {"prestart", "poststart", "poststop"},
	"NUMA.Affinity":       {NUMANone, NUMAPrefer, NUMARequire},
	"GPURequest.RDMA":     {"none", RDMAPreferred, RDMARequired},
	"GPURequest.Enforce":  GPUEnforces,
	"Artifact.Mode":       {"any", "file", "dir"},
	"Template.ChangeMode": {"noop", "restart", "signal", "script"},
	"Identity.ChangeMode": {"noop", "restart", "signal"},

	"VolumeMount.PropagationMode": {"private", "host-to-task", "bidirectional"},

	"Service.Provider":    {"nomad", "consul"},
	"Service.AddressMode": {"auto", "host", "alloc"}, // also of a check
	"Service.OnUpdate":    {"require_healthy", "ignore_warnings", "ignore"},
	"Check.Protocol":      {"http", "https"},
	"Check.InitialStatus": {"passing", "warning", "critical", "pending"},
}

func orderNames() []string {
	out := make([]string, len(QueueOrders))
	for i, o := range QueueOrders {
		out[i] = string(o)
	}
	return out
}
