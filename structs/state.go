package structs

// Namespace separates jobs, tokens and policies.
type Namespace struct {
	Name                            string
	Description                     string
	Meta                            map[string]string
	Quota                           string
	EnabledDrivers, DisabledDrivers []string
	NodePools                       *NamespaceChoice // of its jobs; nil: all
	Queues                          *NamespaceChoice // of its jobs; nil: all
	Tolerations                     *NamespaceChoice // keys of taints that its jobs may tolerate; nil: all
	MaxPriority                     int              // of its jobs; 0: no limit
	DefaultPriority                 int              `since:"2"` // of its jobs without one, unless their queue has a default; 0: the servers'
	CreateIndex                     Index
	ModifyIndex                     Index
}

// NamespaceChoice limits a name that a job chooses. Patterns have * and ?.
type NamespaceChoice struct {
	Default string   // of jobs that choose none; always allowed; "": the cluster's default
	Allowed []string // patterns; nil: what Denied does not deny; empty: Default alone
	Denied  []string // patterns; not together with Allowed
}

// AlgorithmDefault is the placement policy of a cluster that configures none. Servers, agents and the simulator read this
// constant; ADR 0004 says why it is this one.
const AlgorithmDefault = "strand"

// DefaultSchedulerConfig returns the configuration of an unconfigured cluster. Empty fields are not written
// into the state: they have the defaults of the leader that decides, and Apply never reads them.
func DefaultSchedulerConfig() *SchedulerConfig { return &SchedulerConfig{PreemptSystem: true} }

// SchedulerConfig is the cluster-wide configuration of decisions. It is changed through the operator API only.
type SchedulerConfig struct {
	Algorithm       string // placement policy: binpack, spread (worst-fit), first-fit, ...; "": AlgorithmDefault
	PreemptSystem   bool
	PreemptService  bool
	PreemptBatch    bool
	PreemptSysBatch bool
	MemoryOversub   bool
	RejectRegister  bool // only management tokens may register
	PauseBroker     bool // no passes run
	NodeLimit       int64
	GPUFit          string // within a GPU: GPUFitBest (also ""), ...
	Order           Order  // ordering policy of queues that set none; "": OrderDefault
	Backfill        string // backfilling of queues that set none; "": BackfillDefault
	Weights         ScoreWeights

	MaxCheckpoints    int64            // limit of the allocations that must end and save their state at a time; 0: no limit
	CheckpointStorage map[string]int64 // the same for those that write to a storage (Checkpoint.Storage), by its name

	// TopologyLevels are the levels of the tree in which gangs are placed, from near to far: keys of the nodes' meta or
	// attributes, such as rack, leaf, pod, or "datacenter". nil: those of TopologyLevelsKnown that nodes have; TopologyNone alone: none.
	TopologyLevels []string `since:"2"`

	CreateIndex Index
	ModifyIndex Index
}

// AutopilotConfig is the configuration of raft-autopilot. Durations in nanoseconds.
type AutopilotConfig struct {
	CleanupDeadServers      bool
	LastContactThreshold    int64
	MaxTrailingLogs         uint64
	MinQuorum               uint64
	ServerStabilizationTime int64
	CreateIndex             Index
	ModifyIndex             Index
}

// ClusterMeta identifies a cluster and the history it is on (D14).
type ClusterMeta struct {
	ID           ClusterID
	RestoreEpoch uint64 // raised by every operator restore: see RestoredCommand
	CreateTime   LogTime
	Format       Format // in force: the leader writes nothing newer, and the state hash is computed in it (D8)
	FormatBy     string // release of the leader that raised the cluster to Format
	CreateIndex  Index
}

// PeriodicLaunch is the last launch of a periodic job.
type PeriodicLaunch struct {
	Namespace   string
	JobID       string
	Launch      LogTime // the time of the cron expression, not of the command
	CreateIndex Index
	ModifyIndex Index
}

// ScalingEvent records that a group was scaled.
type ScalingEvent struct {
	Time          LogTime
	Group         GroupName
	Count         *int64 // nil: only a message
	PreviousCount int64
	Message       string
	Error         bool
	Meta          RawConfig
	EvalID        EvalID
	CreateIndex   Index
}

// ScalingEvents are the latest events of one job, newest first, at most 20 per group.
type ScalingEvents struct {
	Namespace   string
	JobID       string
	Events      []ScalingEvent
	ModifyIndex Index
}

// JobVersions are the kept versions of one job, newest first.
type JobVersions struct {
	Namespace   string
	JobID       string
	Versions    []*Job
	Submissions map[uint64]*JobSubmission
}

// SigningKey verifies workload identities. Its private part is in the servers' keystores only.
type SigningKey struct {
	ID          string  // a digest of the private part
	Algorithm   string  // "RS256"
	Public      []byte  // PKIX
	Active      bool    // new tokens are signed with it
	EndedAt     LogTime // when another key became active; 0 for the active one
	CreateTime  LogTime
	CreateIndex Index
	ModifyIndex Index
}
