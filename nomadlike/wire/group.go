package wire

// TaskGroup is a set of tasks placed together on one node.
type TaskGroup struct {
	Name                      *string                   `hcl:"name,label"`
	Count                     *int                      `hcl:"count"`
	Constraints               []*Constraint             `hcl:"constraint"`
	Affinities                []*Affinity               `hcl:"affinity"`
	Tasks                     []*Task                   `hcl:"task"`
	Spreads                   []*Spread                 `hcl:"spread"`
	Volumes                   map[string]*VolumeRequest `hcl:"volume"`
	RestartPolicy             *RestartPolicy            `hcl:"restart"`
	Disconnect                *DisconnectStrategy       `hcl:"disconnect"`
	ReschedulePolicy          *ReschedulePolicy         `hcl:"reschedule"`
	EphemeralDisk             *EphemeralDisk            `hcl:"ephemeral_disk"`
	Update                    *UpdateStrategy           `hcl:"update"`
	Migrate                   *MigrateStrategy          `hcl:"migrate"`
	Networks                  []*NetworkResource        `hcl:"network"`
	Meta                      map[string]string         `hcl:"meta"`
	Services                  []*Service                `hcl:"service"`
	ShutdownDelay             *Duration                 `hcl:"shutdown_delay"`
	MaxRunDuration            *Duration                 `hcl:"max_run_duration"`
	StopAfterClientDisconnect *Duration                 `hcl:"stop_after_client_disconnect"`
	MaxClientDisconnect       *Duration                 `hcl:"max_client_disconnect"`
	Scaling                   *ScalingPolicy            `hcl:"scaling"`
	Consul                    *Consul                   `hcl:"consul"`
	PreventRescheduleOnLost   *bool                     `hcl:"prevent_reschedule_on_lost"`

	// Muster's own.
	Gang       *Gang       `hcl:"gang" json:",omitempty"`
	Elastic    *Elastic    `hcl:"elastic" json:",omitempty"`
	Topology   *Topology   `hcl:"topology" json:",omitempty"`
	Launch     *Launch     `hcl:"launch" json:",omitempty"`
	Checkpoint *Checkpoint `hcl:"checkpoint" json:",omitempty"`
	Near       []*Peer     `hcl:"near" json:",omitempty"`
	Away       []*Peer     `hcl:"away" json:",omitempty"`
}

// VolumeRequest is a volume that a group asks for.
type VolumeRequest struct {
	Name           string           `hcl:"name,label"`
	Type           string           `hcl:"type"`
	Source         string           `hcl:"source"`
	ReadOnly       bool             `hcl:"read_only"`
	Sticky         bool             `hcl:"sticky"`
	AccessMode     string           `hcl:"access_mode"`
	AttachmentMode string           `hcl:"attachment_mode"`
	MountOptions   *CSIMountOptions `hcl:"mount_options"`
	PerAlloc       bool             `hcl:"per_alloc"`
}

// CSIMountOptions are passed to a storage plugin.
type CSIMountOptions struct {
	FSType     string   `hcl:"fs_type"`
	MountFlags []string `hcl:"mount_flags"`
}

// RestartPolicy is the local restart policy.
type RestartPolicy struct {
	Interval        *Duration `hcl:"interval"`
	Attempts        *int      `hcl:"attempts"`
	Delay           *Duration `hcl:"delay"`
	Mode            *string   `hcl:"mode"`
	RenderTemplates *bool     `hcl:"render_templates"`
}

// DisconnectStrategy says what happens while a node is disconnected.
type DisconnectStrategy struct {
	LostAfter         *Duration `hcl:"lost_after"`
	StopOnClientAfter *Duration `hcl:"stop_on_client_after"`
	Replace           *bool     `hcl:"replace"`
	Reconcile         *string   `hcl:"reconcile"`
}

// EphemeralDisk is the scratch space of a group.
type EphemeralDisk struct {
	Sticky  *bool `hcl:"sticky"`
	Migrate *bool `hcl:"migrate"`
	SizeMB  *int  `hcl:"size"`
}

// ScalingPolicy limits a count and carries an autoscaler's policy.
type ScalingPolicy struct {
	Min     *int64         `hcl:"min"`
	Max     *int64         `hcl:"max"`
	Policy  map[string]any `hcl:"policy"`
	Enabled *bool          `hcl:"enabled"`
	Type    string         `hcl:"type"`

	ID          string
	Namespace   string
	Target      map[string]string
	CreateIndex uint64
	ModifyIndex uint64
}

// Consul selects a Consul cluster.
type Consul struct {
	Namespace string `hcl:"namespace"`
	Cluster   string `hcl:"cluster"`
	Partition string `hcl:"partition"`
}

// NetworkResource is a network that a group asks for, or an address that a node has.
type NetworkResource struct {
	Mode          string     `hcl:"mode"`
	Device        string     `hcl:"device"`
	CIDR          string     `hcl:"cidr"`
	IP            string     `hcl:"ip"`
	DNS           *DNSConfig `hcl:"dns"`
	ReservedPorts []Port     // static ports; the job language writes them as port blocks with static
	DynamicPorts  []Port     `hcl:"port"`
	Hostname      string     `hcl:"hostname"`
	MBits         *int       `hcl:"mbits"`
	CNI           *CNIConfig `hcl:"cni"`
}

// CNIConfig is passed to CNI plugins.
type CNIConfig struct {
	Args map[string]string `hcl:"args"`
}

// DNSConfig overrides a group's resolver.
type DNSConfig struct {
	Servers  []string `hcl:"servers"`
	Searches []string `hcl:"searches"`
	Options  []string `hcl:"options"`
}

// Port is a named port.
type Port struct {
	Label           string `hcl:"label,label"`
	Value           int    `hcl:"static"`
	To              int    `hcl:"to"`
	HostNetwork     string `hcl:"host_network"`
	IgnoreCollision bool   `hcl:"ignore_collision"`
}
