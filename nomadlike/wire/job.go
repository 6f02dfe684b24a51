package wire

// The hcl tags name the attribute or block of the job language; package jobspec reads them. Fields without one are set
// by servers or belong to the API only.

// Job is what a user submits.
type Job struct {
	Region           *string           `hcl:"region"`
	Namespace        *string           `hcl:"namespace"`
	ID               *string           `hcl:"id"`
	Name             *string           `hcl:"name"`
	Type             *string           `hcl:"type"`
	Priority         *int              `hcl:"priority"`
	AllAtOnce        *bool             `hcl:"all_at_once"`
	Datacenters      []string          `hcl:"datacenters"`
	NodePool         *string           `hcl:"node_pool"`
	Constraints      []*Constraint     `hcl:"constraint"`
	Affinities       []*Affinity       `hcl:"affinity"`
	TaskGroups       []*TaskGroup      `hcl:"group"`
	Update           *UpdateStrategy   `hcl:"update"`
	Multiregion      *Multiregion      `hcl:"multiregion"`
	Spreads          []*Spread         `hcl:"spread"`
	Periodic         *PeriodicConfig   `hcl:"periodic"`
	ParameterizedJob *Parameterized    `hcl:"parameterized"`
	Reschedule       *ReschedulePolicy `hcl:"reschedule"`
	Migrate          *MigrateStrategy  `hcl:"migrate"`
	Meta             map[string]string `hcl:"meta"`
	UI               *JobUI            `hcl:"ui"`

	// Muster's own.
	Queue       *string       `hcl:"queue" json:",omitempty"`
	Placement   *string       `hcl:"placement" json:",omitempty"`
	Preemptible *bool         `hcl:"preemptible" json:",omitempty"`
	Runtime     *Runtime      `hcl:"runtime" json:",omitempty"`
	Deadline    *string       `hcl:"deadline" json:",omitempty"` // RFC 3339
	Begin       *string       `hcl:"begin" json:",omitempty"`    // RFC 3339
	Hold        *bool         `hcl:"hold" json:",omitempty"`
	Requeue     *Requeue      `hcl:"requeue" json:",omitempty"`
	DependsOn   []*DependsOn  `hcl:"depends_on" json:",omitempty"`
	Tolerations []*Toleration `hcl:"toleration" json:",omitempty"`
	Array       *Array        `hcl:"array" json:",omitempty"`
	Near        []*Peer       `hcl:"near" json:",omitempty"`
	Away        []*Peer       `hcl:"away" json:",omitempty"`
	Datasets    []string      `hcl:"datasets" json:",omitempty"`
	Weights     *ScoreWeights `hcl:"score_weights" json:",omitempty"`

	Stop                     *bool
	ParentID                 *string
	Dispatched               bool
	DispatchIdempotencyToken *string
	Payload                  []byte
	ConsulNamespace          *string
	VaultNamespace           *string
	NomadTokenID             *string
	Status                   *string
	StatusDescription        *string
	Stable                   *bool
	Version                  *uint64
	SubmitTime               *int64
	CreateIndex              *uint64
	ModifyIndex              *uint64
	JobModifyIndex           *uint64
	VersionTag               *JobVersionTag
	Submitter                *Submitter `json:",omitempty"` // Muster's own; set by the server

	// Sent by older clients; accepted and dropped.
	ConsulToken *string `json:",omitempty"`
	VaultToken  *string `json:",omitempty"`
}

// Submitter is who registered a job.
type Submitter struct {
	Name     string
	UID, GID int64
	Accessor string
}

// UpdateStrategy is how a new version replaces the old one.
type UpdateStrategy struct {
	Stagger          *Duration `hcl:"stagger"`
	MaxParallel      *int      `hcl:"max_parallel"`
	HealthCheck      *string   `hcl:"health_check"`
	MinHealthyTime   *Duration `hcl:"min_healthy_time"`
	HealthyDeadline  *Duration `hcl:"healthy_deadline"`
	ProgressDeadline *Duration `hcl:"progress_deadline"`
	Canary           *int      `hcl:"canary"`
	AutoRevert       *bool     `hcl:"auto_revert"`
	AutoPromote      *bool     `hcl:"auto_promote"`
}

// Multiregion is the deployment of one job to several regions.
type Multiregion struct {
	Strategy *MultiregionStrategy `hcl:"strategy"`
	Regions  []*MultiregionRegion `hcl:"region"`
}

// MultiregionStrategy is the order in which regions are updated.
type MultiregionStrategy struct {
	MaxParallel *int    `hcl:"max_parallel"`
	OnFailure   *string `hcl:"on_failure"`
}

// MultiregionRegion is one region of a multi-region job.
type MultiregionRegion struct {
	Name        string            `hcl:"name,label"`
	Count       *int              `hcl:"count"`
	Datacenters []string          `hcl:"datacenters"`
	NodePool    string            `hcl:"node_pool"`
	Meta        map[string]string `hcl:"meta"`
}

// PeriodicConfig launches children on a schedule.
type PeriodicConfig struct {
	Enabled         *bool    `hcl:"enabled"`
	Spec            *string  `hcl:"cron"`
	Specs           []string `hcl:"crons"`
	SpecType        *string
	ProhibitOverlap *bool   `hcl:"prohibit_overlap"`
	TimeZone        *string `hcl:"time_zone"`
}

// Parameterized makes a job a template for dispatch.
type Parameterized struct {
	Payload      string   `hcl:"payload"`
	MetaRequired []string `hcl:"meta_required"`
	MetaOptional []string `hcl:"meta_optional"`
}

// JobUI is a description and links that a user interface shows with the job.
type JobUI struct {
	Description string       `hcl:"description"`
	Links       []*JobUILink `hcl:"link"`
}

// JobUILink is one labelled URL.
type JobUILink struct {
	Label string `hcl:"label"`
	URL   string `hcl:"url"`
}

// JobVersionTag names a version.
type JobVersionTag struct {
	Name        string
	Description string
	TaggedTime  int64
}

// Constraint must hold on a node or device.
type Constraint struct {
	LTarget string `hcl:"attribute"`
	RTarget string `hcl:"value"`
	Operand string `hcl:"operator"`
}

// Affinity is a preference with a weight.
type Affinity struct {
	LTarget string `hcl:"attribute"`
	RTarget string `hcl:"value"`
	Operand string `hcl:"operator"`
	Weight  *int8  `hcl:"weight"`
}

// Spread distributes a group over the values of an attribute.
type Spread struct {
	Attribute    string          `hcl:"attribute"`
	Weight       *int8           `hcl:"weight"`
	SpreadTarget []*SpreadTarget `hcl:"target"`
}

// SpreadTarget is the desired share of one value.
type SpreadTarget struct {
	Value   string `hcl:"value,label"`
	Percent uint8  `hcl:"percent"`
}

// ReschedulePolicy moves failed allocations to other nodes.
type ReschedulePolicy struct {
	Attempts      *int      `hcl:"attempts"`
	Interval      *Duration `hcl:"interval"`
	Delay         *Duration `hcl:"delay"`
	DelayFunction *string   `hcl:"delay_function"`
	MaxDelay      *Duration `hcl:"max_delay"`
	Unlimited     *bool     `hcl:"unlimited"`
}

// MigrateStrategy limits how much a drain moves at once.
type MigrateStrategy struct {
	MaxParallel     *int      `hcl:"max_parallel"`
	HealthCheck     *string   `hcl:"health_check"`
	MinHealthyTime  *Duration `hcl:"min_healthy_time"`
	HealthyDeadline *Duration `hcl:"healthy_deadline"`
}

// JobSubmission is the source of a job.
type JobSubmission struct {
	Source        string
	Format        string
	VariableFlags map[string]string
	Variables     string
}
