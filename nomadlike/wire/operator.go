package wire

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// NodePool is a named set of nodes.
type NodePool struct {
	Name                   string                 `hcl:"name,label"`
	Description            string                 `hcl:"description"`
	Meta                   map[string]string      `hcl:"meta"`
	NodeIdentityTTL        TextDuration           `hcl:"node_identity_ttl" json:",omitempty"`
	SchedulerConfiguration *PoolSchedulerSettings `hcl:"scheduler_config"`
	CreateIndex            uint64
	ModifyIndex            uint64
}

// PoolSchedulerSettings overrides the scheduler configuration for a pool.
type PoolSchedulerSettings struct {
	SchedulerAlgorithm            string `hcl:"scheduler_algorithm"`
	MemoryOversubscriptionEnabled *bool  `hcl:"memory_oversubscription_enabled"`
	OvercommitCPU                 int64  `hcl:"overcommit_cpu" json:",omitempty"`    // percent; 0: 100
	OvercommitMemory              int64  `hcl:"overcommit_memory" json:",omitempty"` // percent; 0: 100

	ScoreWeights   *ScoreWeights `hcl:"score_weights" json:",omitempty"`
	PowerBudgetW   int64         `hcl:"power_budget_w" json:",omitempty"`  // watts that the GPUs in use may draw together; 0: no limit
	MaxCheckpoints int64         `hcl:"max_checkpoints" json:",omitempty"` // allocations that save their state at a time; 0: no limit
}

// PoolFromStructs converts a node pool.
func PoolFromStructs(p *structs.NodePool) *NodePool {
	out := &NodePool{Name: string(p.Name), Description: p.Description, Meta: p.Meta, CreateIndex: uint64(p.CreateIndex), ModifyIndex: uint64(p.ModifyIndex)}
	if p.Algorithm != "" || p.Overcommit != (structs.Overcommit{}) || p.Weights != (structs.ScoreWeights{}) || p.MaxCheckpoints != 0 || p.PowerBudgetW != 0 {
		out.SchedulerConfiguration = &PoolSchedulerSettings{SchedulerAlgorithm: p.Algorithm, ScoreWeights: weightsFrom(p.Weights), OvercommitCPU: p.Overcommit.CPU, OvercommitMemory: p.Overcommit.Memory,
			MaxCheckpoints: p.MaxCheckpoints, PowerBudgetW: p.PowerBudgetW}
	}
	return out
}

// ToStructs converts a node pool.
func (p *NodePool) ToStructs() *structs.NodePool {
	out := &structs.NodePool{Name: structs.PoolName(p.Name), Description: p.Description, Meta: cloneMap(p.Meta)}
	if p.SchedulerConfiguration != nil {
		out.Algorithm, out.MaxCheckpoints = p.SchedulerConfiguration.SchedulerAlgorithm, p.SchedulerConfiguration.MaxCheckpoints
		out.PowerBudgetW = p.SchedulerConfiguration.PowerBudgetW
		out.Weights = p.SchedulerConfiguration.ScoreWeights.toStructs()
		out.Overcommit = structs.Overcommit{CPU: p.SchedulerConfiguration.OvercommitCPU, Memory: p.SchedulerConfiguration.OvercommitMemory}
	}
	return out
}

// Namespace separates jobs, tokens and policies.
type Namespace struct {
	Name                    string                 `hcl:"name"`
	Description             string                 `hcl:"description"`
	Quota                   string                 `hcl:"quota"`
	Capabilities            *NamespaceCapabilities `hcl:"capabilities"`
	NodePoolConfiguration   *NamespaceChoice       `hcl:"node_pool_config"`
	QueueConfiguration      *NamespaceChoice       `hcl:"queue_config" json:",omitempty"`      // ours
	TolerationConfiguration *NamespaceChoice       `hcl:"toleration_config" json:",omitempty"` // ours; keys of taints
	MaxPriority             int                    `hcl:"max_priority" json:",omitempty"`      // ours
	DefaultPriority         int                    `hcl:"default_priority" json:",omitempty"`  // ours
	VaultConfiguration      *NamespaceChoice       `hcl:"vault"`
	ConsulConfiguration     *NamespaceChoice       `hcl:"consul"`
	Meta                    map[string]string      `hcl:"meta"`
	CreateIndex             uint64
	ModifyIndex             uint64
}

// NamespaceCapabilities limits what jobs of a namespace may use.
type NamespaceCapabilities struct {
	EnabledTaskDrivers   []string `hcl:"enabled_task_drivers"`
	DisabledTaskDrivers  []string `hcl:"disabled_task_drivers"`
	EnabledNetworkModes  []string `hcl:"enabled_network_modes"`
	DisabledNetworkModes []string `hcl:"disabled_network_modes"`
}

// NamespaceChoice is a default with the allowed and denied alternatives.
type NamespaceChoice struct {
	Default string   `hcl:"default"`
	Allowed []string `hcl:"allowed"`
	Denied  []string `hcl:"denied"`
}

// NamespaceFromStructs converts a namespace.
func NamespaceFromStructs(n *structs.Namespace) *Namespace {
	out := &Namespace{Name: n.Name, Description: n.Description, Quota: n.Quota, Meta: n.Meta, CreateIndex: uint64(n.CreateIndex), ModifyIndex: uint64(n.ModifyIndex)}
	if len(n.EnabledDrivers)+len(n.DisabledDrivers) > 0 {
		out.Capabilities = &NamespaceCapabilities{EnabledTaskDrivers: n.EnabledDrivers, DisabledTaskDrivers: n.DisabledDrivers}
	}
	out.NodePoolConfiguration, out.QueueConfiguration = choiceFromStructs(n.NodePools), choiceFromStructs(n.Queues)
	out.TolerationConfiguration, out.MaxPriority, out.DefaultPriority = choiceFromStructs(n.Tolerations), n.MaxPriority, n.DefaultPriority
	return out
}

func choiceFromStructs(c *structs.NamespaceChoice) *NamespaceChoice {
	if c == nil {
		return nil
	}
	return &NamespaceChoice{Default: c.Default, Allowed: c.Allowed, Denied: c.Denied}
}

// toStructs converts a choice; one that restricts nothing is nil.
func (c *NamespaceChoice) toStructs() *structs.NamespaceChoice {
	if c == nil || c.Default == "" && c.Allowed == nil && len(c.Denied) == 0 {
		return nil
	}
	return &structs.NamespaceChoice{Default: c.Default, Allowed: c.Allowed, Denied: c.Denied}
}

// ToStructs converts a namespace. A setting that this build cannot enforce is an error, so that no one relies on it.
func (n *Namespace) ToStructs() (*structs.Namespace, error) {
	out := &structs.Namespace{Name: n.Name, Description: n.Description, Quota: n.Quota, Meta: cloneMap(n.Meta), MaxPriority: n.MaxPriority, DefaultPriority: n.DefaultPriority,
		NodePools: n.NodePoolConfiguration.toStructs(), Queues: n.QueueConfiguration.toStructs(), Tolerations: n.TolerationConfiguration.toStructs()}
	if c := n.Capabilities; c != nil {
		if len(c.EnabledNetworkModes)+len(c.DisabledNetworkModes) > 0 {
			return nil, structs.Errorf(structs.CodeUnsupported, "namespace %q: network modes in capabilities are not supported by this build; remove enabled_network_modes and disabled_network_modes", n.Name)
		}
		out.EnabledDrivers, out.DisabledDrivers = c.EnabledTaskDrivers, c.DisabledTaskDrivers
	}
	for _, x := range []struct {
		name string
		set  *NamespaceChoice
	}{{"vault", n.VaultConfiguration}, {"consul", n.ConsulConfiguration}} {
		if x.set != nil && (x.set.Default != "" || len(x.set.Allowed)+len(x.set.Denied) > 0) {
			return nil, structs.Errorf(structs.CodeUnsupported, "namespace %q: %s is not supported by this build; remove the block", n.Name, x.name)
		}
	}
	return out, nil
}

// SchedulerConfiguration is the cluster-wide configuration of decisions.
type SchedulerConfiguration struct {
	SchedulerAlgorithm            string // in force
	AlgorithmFollowsDefault       bool   `json:",omitempty"` // Muster's own: no user chose SchedulerAlgorithm, so a later release may decide by another one
	PreemptionConfig              PreemptionConfig
	MemoryOversubscriptionEnabled bool
	RejectJobRegistration         bool
	PauseEvalBroker               bool
	NodeLimitForFeasibilityChecks uint
	GPUFit                        string              `json:",omitempty"` // Muster's own: which GPU of a node gives a share
	ScoreWeights                  *ScoreWeights       `json:",omitempty"` // Muster's own
	MaxCheckpoints                int64               `json:",omitempty"` // Muster's own: allocations that save their state at a time because they are to end; 0: no limit
	CheckpointStorage             map[string]int64    `json:",omitempty"` // Muster's own: the same of those whose checkpoint block names a storage
	TopologyLevels                []string            `json:",omitempty"` // Muster's own: the declared levels of the topology, from near to far; nil: they are discovered
	TopologyLevelsInForce         []string            `json:",omitempty"` // Muster's own: the declared or the discovered ones; ignored in requests
	CheckpointStorageInForce      []CheckpointStorage `json:",omitempty"` // Muster's own: what was measured of CheckpointStorage; ignored in requests
	CreateIndex                   uint64
	ModifyIndex                   uint64
}

// CheckpointStorage is what is known of a storage that limits saves.
type CheckpointStorage struct {
	Name          string
	Most          int64 // saves at a time, as configured
	Limit         int64 // in force: at most Most, by the measured bandwidth
	Measured      int64 // saves that were measured
	AloneMiBps    int64 // measured MiB per second of a save alone; 0: unknown
	TogetherMiBps int64 // of all saves at a time
	Saving        int64 // allocations that have their turn
	Waiting       int64 // that wait for it
}

// PreemptionConfig says which kinds of job may preempt.
type PreemptionConfig struct {
	SystemSchedulerEnabled   bool
	SysBatchSchedulerEnabled bool
	BatchSchedulerEnabled    bool
	ServiceSchedulerEnabled  bool
}

// SchedulerConfigurationResponse answers a read.
type SchedulerConfigurationResponse struct {
	SchedulerConfig *SchedulerConfiguration
	Warnings        []string `json:",omitempty"` // Muster's own: about the levels of the topology
	QueryMeta
}

// SchedulerSetConfigurationResponse answers a write.
type SchedulerSetConfigurationResponse struct {
	Updated  bool
	Index    uint64
	Warnings []string `json:",omitempty"` // Muster's own
}

// SchedulerConfigFromStructs converts the configuration. follows: its algorithm is the default, not a user's choice.
func SchedulerConfigFromStructs(c *structs.SchedulerConfig, follows bool) *SchedulerConfiguration {
	return &SchedulerConfiguration{
		SchedulerAlgorithm: cmp.Or(c.Algorithm, structs.AlgorithmDefault), AlgorithmFollowsDefault: follows || c.Algorithm == "",
		PreemptionConfig: PreemptionConfig{SystemSchedulerEnabled: c.PreemptSystem, SysBatchSchedulerEnabled: c.PreemptSysBatch,
			BatchSchedulerEnabled: c.PreemptBatch, ServiceSchedulerEnabled: c.PreemptService},
		MemoryOversubscriptionEnabled: c.MemoryOversub, RejectJobRegistration: c.RejectRegister, PauseEvalBroker: c.PauseBroker,
		NodeLimitForFeasibilityChecks: uint(c.NodeLimit), GPUFit: c.GPUFit, ScoreWeights: weightsFrom(c.Weights),
		MaxCheckpoints: c.MaxCheckpoints, CheckpointStorage: c.CheckpointStorage, TopologyLevels: c.TopologyLevels, CreateIndex: uint64(c.CreateIndex), ModifyIndex: uint64(c.ModifyIndex),
	}
}

// ToStructs converts the configuration.
func (c *SchedulerConfiguration) ToStructs() *structs.SchedulerConfig {
	p := c.PreemptionConfig
	return &structs.SchedulerConfig{
		Algorithm: c.SchedulerAlgorithm, GPUFit: c.GPUFit, PreemptSystem: p.SystemSchedulerEnabled, PreemptSysBatch: p.SysBatchSchedulerEnabled,
		PreemptBatch: p.BatchSchedulerEnabled, PreemptService: p.ServiceSchedulerEnabled, MemoryOversub: c.MemoryOversubscriptionEnabled,
		RejectRegister: c.RejectJobRegistration, PauseBroker: c.PauseEvalBroker, NodeLimit: int64(c.NodeLimitForFeasibilityChecks), Weights: c.ScoreWeights.toStructs(),
		MaxCheckpoints: c.MaxCheckpoints, CheckpointStorage: maps.Clone(c.CheckpointStorage), TopologyLevels: slices.Clone(c.TopologyLevels),
		CreateIndex: structs.Index(c.CreateIndex), ModifyIndex: structs.Index(c.ModifyIndex),
	}
}

// AutopilotConfiguration is the configuration of autopilot.
type AutopilotConfiguration struct {
	CleanupDeadServers      bool
	LastContactThreshold    TextDuration
	MaxTrailingLogs         uint64
	MinQuorum               uint
	ServerStabilizationTime TextDuration
	EnableRedundancyZones   bool
	DisableUpgradeMigration bool
	EnableCustomUpgrades    bool
	CreateIndex             uint64
	ModifyIndex             uint64
}

// AutopilotFromStructs converts the configuration.
func AutopilotFromStructs(c *structs.AutopilotConfig) *AutopilotConfiguration {
	return &AutopilotConfiguration{
		CleanupDeadServers: c.CleanupDeadServers, LastContactThreshold: TextDuration(c.LastContactThreshold), MaxTrailingLogs: c.MaxTrailingLogs,
		MinQuorum: uint(c.MinQuorum), ServerStabilizationTime: TextDuration(c.ServerStabilizationTime),
		CreateIndex: uint64(c.CreateIndex), ModifyIndex: uint64(c.ModifyIndex),
	}
}

// ToStructs converts the configuration.
func (c *AutopilotConfiguration) ToStructs() (*structs.AutopilotConfig, error) {
	if c.EnableRedundancyZones || c.EnableCustomUpgrades {
		return nil, structs.Errorf(structs.CodeUnsupported, "redundancy zones and custom upgrades are not supported by this build; leave EnableRedundancyZones and EnableCustomUpgrades false")
	}
	return &structs.AutopilotConfig{
		CleanupDeadServers: c.CleanupDeadServers, LastContactThreshold: int64(c.LastContactThreshold), MaxTrailingLogs: c.MaxTrailingLogs,
		MinQuorum: uint64(c.MinQuorum), ServerStabilizationTime: int64(c.ServerStabilizationTime),
		CreateIndex: structs.Index(c.CreateIndex), ModifyIndex: structs.Index(c.ModifyIndex),
	}, nil
}

// ServerHealth is autopilot's opinion of one server.
type ServerHealth struct {
	ID          string
	Name        string
	Address     string
	SerfStatus  string
	Version     string
	Formats     string // that it speaks, such as "1-2"; our addition
	Leader      bool
	LastContact TextDuration
	LastTerm    uint64
	LastIndex   uint64
	Healthy     bool
	Voter       bool
	StableSince time.Time
	Problem     string `json:",omitempty"` // what it says of itself; our addition
}

// OperatorHealthReply is autopilot's opinion of the cluster.
type OperatorHealthReply struct {
	Healthy          bool
	FailureTolerance int
	Servers          []ServerHealth
	Leader           string
	Voters           []string
	ReadReplicas     []string `json:",omitempty"`
}

// RaftServer is one raft peer.
type RaftServer struct {
	ID           string
	Node         string
	Address      string
	Leader       bool
	Voter        bool
	RaftProtocol string
}

// RaftConfiguration is the raft peers.
type RaftConfiguration struct {
	Servers []*RaftServer
	Index   uint64
}

// LeadershipTransferResponse answers a transfer.
type LeadershipTransferResponse struct {
	From RaftServer
	To   RaftServer
	Noop bool
	Err  *string `json:",omitempty"`
}

// OpenIDConfiguration is the discovery document of OpenID Connect. Only tokens are issued; there is no login.
type OpenIDConfiguration struct {
	Issuer             string   `json:"issuer"`
	JWKSURI            string   `json:"jwks_uri"`
	IDTokenSigningAlgs []string `json:"id_token_signing_alg_values_supported"`
	ResponseTypes      []string `json:"response_types_supported"`
	SubjectTypes       []string `json:"subject_types_supported"`
}

// UpgradeStatus says which format is in force, and which all servers could have.
type UpgradeStatus struct {
	Format  uint64 // in force
	By      string // release of the leader that put it in force
	Next    uint64 // what finishing would put in force; equal to Format: there is nothing to finish
	Why     string // why the upgrade cannot be finished now, or ""
	Servers []UpgradeServer
	Gates   []UpgradeGate
}

// UpgradeServer is what one server speaks.
type UpgradeServer struct {
	ID, Name, Address string
	Muster            string // release
	Formats           string // such as "1-2"
	RPC               uint64
	Voter, Leader     bool
	Error             string `json:",omitempty"`
}

// UpgradeGate is something that works from a format on.
type UpgradeGate struct {
	Name, Allows string
	Format       uint64
	Open         bool
}

// UpgradeFinish is the format that is now in force.
type UpgradeFinish struct{ Format, Index uint64 }
