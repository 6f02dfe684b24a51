package wire

// Task is one process or container.
type Task struct {
	Name            string               `hcl:"name,label"`
	Driver          string               `hcl:"driver"`
	User            string               `hcl:"user"`
	Lifecycle       *TaskLifecycle       `hcl:"lifecycle"`
	Config          map[string]any       `hcl:"config"`
	Constraints     []*Constraint        `hcl:"constraint"`
	Affinities      []*Affinity          `hcl:"affinity"`
	Env             map[string]string    `hcl:"env"`
	Services        []*Service           `hcl:"service"`
	Resources       *Resources           `hcl:"resources"`
	RestartPolicy   *RestartPolicy       `hcl:"restart"`
	Meta            map[string]string    `hcl:"meta"`
	KillTimeout     *Duration            `hcl:"kill_timeout"`
	LogConfig       *LogConfig           `hcl:"logs"`
	Artifacts       []*TaskArtifact      `hcl:"artifact"`
	Vault           *Vault               `hcl:"vault"`
	Consul          *Consul              `hcl:"consul"`
	Templates       []*Template          `hcl:"template"`
	DispatchPayload *DispatchPayload     `hcl:"dispatch_payload"`
	VolumeMounts    []*VolumeMount       `hcl:"volume_mount"`
	CSIPluginConfig *TaskCSIPluginConfig `hcl:"csi_plugin" json:",omitempty"`
	Leader          bool                 `hcl:"leader"`
	ShutdownDelay   Duration             `hcl:"shutdown_delay"`
	KillSignal      string               `hcl:"kill_signal"`
	Kind            string               `hcl:"kind"`
	ScalingPolicies []*ScalingPolicy     `hcl:"scaling"`
	Secrets         []*Secret            `hcl:"secret"`
	Identity        *WorkloadIdentity
	Identities      []*WorkloadIdentity `hcl:"identity"`
	Actions         []*Action           `hcl:"action"`
	Schedule        *TaskSchedule       `hcl:"schedule"`

	// Muster's own.
	WorkDir      string `hcl:"work_dir" json:",omitempty"`
	Umask        string `hcl:"umask" json:",omitempty"`
	LogPath      string `hcl:"log_path" json:",omitempty"`
	LogErrorPath string `hcl:"log_error_path" json:",omitempty"`
}

// TaskLifecycle makes a task run around the main tasks.
type TaskLifecycle struct {
	Hook    string `hcl:"hook"`
	Sidecar bool   `hcl:"sidecar"`
}

// LogConfig limits the log files of a task.
type LogConfig struct {
	MaxFiles      *int  `hcl:"max_files"`
	MaxFileSizeMB *int  `hcl:"max_file_size"`
	Enabled       *bool `hcl:"enabled" json:",omitempty"` // deprecated spelling of !Disabled
	Disabled      *bool `hcl:"disabled"`
}

// DispatchPayload names the file that receives a dispatch payload.
type DispatchPayload struct {
	File string `hcl:"file"`
}

// Action is a command that an operator may run in a task.
type Action struct {
	Name    string   `hcl:"name,label"`
	Command string   `hcl:"command"`
	Args    []string `hcl:"args"`
}

// VolumeMount mounts a volume in a task.
type VolumeMount struct {
	Volume          *string `hcl:"volume"`
	Destination     *string `hcl:"destination"`
	ReadOnly        *bool   `hcl:"read_only"`
	PropagationMode *string `hcl:"propagation_mode"`
	SELinuxLabel    *string `hcl:"selinux_label"`
}

// TaskArtifact is a file fetched for a task.
type TaskArtifact struct {
	GetterSource   *string           `hcl:"source"`
	GetterOptions  map[string]string `hcl:"options"`
	GetterHeaders  map[string]string `hcl:"headers"`
	GetterMode     *string           `hcl:"mode"`
	GetterInsecure *bool             `hcl:"insecure"`
	RelativeDest   *string           `hcl:"destination"`
	Chown          bool              `hcl:"chown"`
}

// Template is a file rendered for a task.
type Template struct {
	SourcePath    *string       `hcl:"source"`
	DestPath      *string       `hcl:"destination"`
	EmbeddedTmpl  *string       `hcl:"data"`
	ChangeMode    *string       `hcl:"change_mode"`
	ChangeScript  *ChangeScript `hcl:"change_script"`
	ChangeSignal  *string       `hcl:"change_signal"`
	Once          *bool         `hcl:"once"`
	Splay         *Duration     `hcl:"splay"`
	Perms         *string       `hcl:"perms"`
	Uid           *int          `hcl:"uid"`
	Gid           *int          `hcl:"gid"`
	LeftDelim     *string       `hcl:"left_delimiter"`
	RightDelim    *string       `hcl:"right_delimiter"`
	Envvars       *bool         `hcl:"env"`
	VaultGrace    *Duration     `hcl:"vault_grace"`
	Wait          *WaitConfig   `hcl:"wait"`
	ErrMissingKey *bool         `hcl:"error_on_missing_key"`
}

// ChangeScript runs when a template changed.
type ChangeScript struct {
	Command          *string   `hcl:"command"`
	Args             []string  `hcl:"args"`
	Timeout          *Duration `hcl:"timeout"`
	FailOnError      *bool     `hcl:"fail_on_error"`
	RunOnFirstRender *bool     `hcl:"run_on_first_render"`
}

// WaitConfig is how long a template waits for its inputs to settle.
type WaitConfig struct {
	Min *Duration `hcl:"min"`
	Max *Duration `hcl:"max"`
}

// Vault is a task's access to Vault.
type Vault struct {
	Policies             []string `hcl:"policies"`
	Role                 string   `hcl:"role"`
	Namespace            *string  `hcl:"namespace"`
	Cluster              string   `hcl:"cluster"`
	Env                  *bool    `hcl:"env"`
	DisableFile          *bool    `hcl:"disable_file"`
	ChangeMode           *string  `hcl:"change_mode"`
	ChangeSignal         *string  `hcl:"change_signal"`
	AllowTokenExpiration *bool    `hcl:"allow_token_expiration"`
}

// Secret is a secret fetched for a task.
type Secret struct {
	Name     string            `hcl:"name,label"`
	Provider string            `hcl:"provider"`
	Path     string            `hcl:"path"`
	Config   map[string]any    `hcl:"config"`
	Env      map[string]string `hcl:"env"`
}

// TaskCSIPluginConfig makes a task a storage plugin.
type TaskCSIPluginConfig struct {
	ID                  string   `hcl:"id"`
	Type                string   `hcl:"type"`
	MountDir            string   `hcl:"mount_dir"`
	StagePublishBaseDir string   `hcl:"stage_publish_base_dir"`
	HealthTimeout       Duration `hcl:"health_timeout"`
}

// WorkloadIdentity is a signed identity of a task.
type WorkloadIdentity struct {
	Name         string   `hcl:"name"`
	Audience     []string `hcl:"aud"`
	ChangeMode   string   `hcl:"change_mode"`
	ChangeSignal string   `hcl:"change_signal"`
	Env          bool     `hcl:"env"`
	File         bool     `hcl:"file"`
	Filepath     string   `hcl:"filepath"`
	ServiceName  string   `hcl:"service_name"`
	TTL          Duration `hcl:"ttl"`
	ExtraClaims  []string `hcl:"extra_claims"`
}

// TaskSchedule runs a task in time windows.
type TaskSchedule struct {
	Cron *TaskScheduleCron `hcl:"cron"`
}

// TaskScheduleCron is one time window.
type TaskScheduleCron struct {
	Start    string `hcl:"start"`
	End      string `hcl:"end"`
	Timezone string `hcl:"timezone"`
}

// Resources is what a task asks for.
type Resources struct {
	CPU         *int               `hcl:"cpu"`
	Cores       *int               `hcl:"cores"`
	MemoryMB    *int               `hcl:"memory"`
	MemoryMaxMB *int               `hcl:"memory_max"`
	DiskMB      *int               `hcl:"disk"`
	Networks    []*NetworkResource `hcl:"network"`
	Devices     []*RequestedDevice `hcl:"device"`
	NUMA        *NUMAResource      `hcl:"numa"`
	SecretsMB   *int               `hcl:"secrets"`
	IOPS        *int               `hcl:"iops" json:",omitempty"`

	// Muster's own.
	ShmMB   *int              `hcl:"shm" json:",omitempty"`
	GPU     *GPU              `hcl:"gpu" json:",omitempty"`
	RDMA    *bool             `hcl:"rdma" json:",omitempty"`
	Ulimits map[string]string `hcl:"ulimits" json:",omitempty"`
}

// NUMAResource is the affinity of a task to NUMA nodes.
type NUMAResource struct {
	Affinity string   `hcl:"affinity"`
	Devices  []string `hcl:"devices"`
}

// RequestedDevice asks for whole devices.
type RequestedDevice struct {
	Name        string        `hcl:"name,label"`
	Count       *uint64       `hcl:"count"`
	Constraints []*Constraint `hcl:"constraint"`
	Affinities  []*Affinity   `hcl:"affinity"`
}

// Service is a service registration.
type Service struct {
	Name              string            `hcl:"name"`
	Tags              []string          `hcl:"tags"`
	CanaryTags        []string          `hcl:"canary_tags"`
	EnableTagOverride bool              `hcl:"enable_tag_override"`
	PortLabel         string            `hcl:"port"`
	AddressMode       string            `hcl:"address_mode"`
	Address           string            `hcl:"address"`
	Checks            []ServiceCheck    `hcl:"check"`
	CheckRestart      *CheckRestart     `hcl:"check_restart"`
	Connect           map[string]any    `hcl:"connect"` // opaque, because it is refused
	Meta              map[string]string `hcl:"meta"`
	CanaryMeta        map[string]string `hcl:"canary_meta"`
	TaggedAddresses   map[string]string `hcl:"tagged_addresses"`
	TaskName          string            `hcl:"task"`
	OnUpdate          string            `hcl:"on_update"`
	Identity          *WorkloadIdentity `hcl:"identity"`
	Weights           *ServiceWeights   `hcl:"weights"`
	Provider          string            `hcl:"provider"`
	Cluster           string            `hcl:"cluster"`
	Kind              string            `hcl:"kind"`
}

// ServiceWeights are the weights of a service in DNS answers.
type ServiceWeights struct {
	Passing int `hcl:"passing"`
	Warning int `hcl:"warning"`
}

// CheckRestart restarts a task whose check fails.
type CheckRestart struct {
	Limit          int       `hcl:"limit"`
	Grace          *Duration `hcl:"grace"`
	IgnoreWarnings bool      `hcl:"ignore_warnings"`
}

// ServiceCheck is a health check of a service.
type ServiceCheck struct {
	Name                   string              `hcl:"name"`
	Type                   string              `hcl:"type"`
	Command                string              `hcl:"command"`
	Args                   []string            `hcl:"args"`
	Path                   string              `hcl:"path"`
	Protocol               string              `hcl:"protocol"`
	PortLabel              string              `hcl:"port"`
	Expose                 bool                `hcl:"expose"`
	AddressMode            string              `hcl:"address_mode"`
	Advertise              string              `hcl:"advertise"`
	Interval               Duration            `hcl:"interval"`
	Timeout                Duration            `hcl:"timeout"`
	InitialStatus          string              `hcl:"initial_status"`
	Notes                  string              `hcl:"notes"`
	TLSServerName          string              `hcl:"tls_server_name"`
	TLSSkipVerify          bool                `hcl:"tls_skip_verify"`
	Header                 map[string][]string `hcl:"header"`
	Method                 string              `hcl:"method"`
	CheckRestart           *CheckRestart       `hcl:"check_restart"`
	GRPCService            string              `hcl:"grpc_service"`
	GRPCUseTLS             bool                `hcl:"grpc_use_tls"`
	TaskName               string              `hcl:"task"`
	SuccessBeforePassing   int                 `hcl:"success_before_passing"`
	FailuresBeforeCritical int                 `hcl:"failures_before_critical"`
	FailuresBeforeWarning  int                 `hcl:"failures_before_warning"`
	Body                   string              `hcl:"body"`
	OnUpdate               string              `hcl:"on_update"`
}
