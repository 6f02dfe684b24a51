package agentconfig

import "time"

// Config is an agent's configuration. The tag of a field is its key in files. Unless its comment says otherwise, a
// change needs a restart, "" or 0 is what a missing key gives, and that is the default told.
type Config struct {
	// Name of this agent, unique within its region; it is kept in the servers' memory of the node. Default: the host's
	// name.
	Name string `conf:"name"`
	// Region is the set of servers that share one state. Default: "global".
	Region string `conf:"region"`
	// Datacenter of this agent; jobs choose by it. Default: "dc1".
	Datacenter string `conf:"datacenter"`
	// DataDir keeps the servers' log and snapshots and the client's identity, state and allocations. Required, except
	// with -dev, where missing means a temporary directory that is removed at the end. Made absolute.
	DataDir string `conf:"data_dir"`
	// BindAddr is the IP address that all ports listen on. Default: 127.0.0.1; 0.0.0.0 (all addresses) once TLS, ACLs
	// and a gossip key are configured.
	BindAddr string `conf:"bind_addr"`
	// Addresses binds single ports elsewhere.
	Addresses Addresses `conf:"addresses"`
	// Advertise tells others where to reach this agent, "HOST" or "HOST:PORT". Default: what is bound, and for
	// 0.0.0.0 the address of the default route.
	Advertise Addresses `conf:"advertise"`
	// Ports are the numbers of the ports.
	Ports Ports `conf:"ports"`

	Server Server `conf:"server"` // the server part
	Client Client `conf:"client"` // the client part
	Plugin Plugin `conf:"plugin"` // the drivers

	ACL       ACL       `conf:"acl"`       // access control
	TLS       TLS       `conf:"tls"`       // encryption between agents and of the HTTP API
	Limits    Limits    `conf:"limits"`    // of connections
	Telemetry Telemetry `conf:"telemetry"` // figures about the agent

	// LogLevel is what is logged: TRACE, DEBUG, INFO, WARN, ERROR or OFF. Default: INFO. Reloadable.
	LogLevel string `conf:"log_level"`
	// LogJSON writes log lines as JSON objects. Default: false.
	LogJSON bool `conf:"log_json"`
	// LogIncludeLocation adds file and line of the program to log lines. Default: false.
	LogIncludeLocation bool `conf:"log_include_location"`
	// LogFile gets the log as well as standard error. A name that ends with / is a directory, where muster.log is
	// written. Default: "", no file.
	LogFile string `conf:"log_file"`
	// LogRotateBytes starts a new file when the present one would grow beyond this many bytes. Default: 0, no limit.
	LogRotateBytes int64 `conf:"log_rotate_bytes"`
	// LogRotateDuration starts a new file after this time. Default and 0: 24h.
	LogRotateDuration time.Duration `conf:"log_rotate_duration"`
	// LogRotateMaxFiles is how many older files are kept; 0, the default, keeps all, negative none.
	LogRotateMaxFiles int `conf:"log_rotate_max_files"`

	// LeaveOnInterrupt leaves the cluster when interrupted (SIGINT) instead of ending at once. Default: false.
	LeaveOnInterrupt bool `conf:"leave_on_interrupt"`
	// LeaveOnTerminate does so when told to end (SIGTERM). Default: false.
	LeaveOnTerminate bool `conf:"leave_on_terminate"`
	// EnableDebug serves profiles (/debug/pprof) to whoever may read the agent. Default: false, management only.
	EnableDebug bool `conf:"enable_debug"`

	// Insecure spells out that addresses beyond this machine are served without TLS, ACLs or a gossip key: anybody who
	// reaches them may run programs here. Default: false.
	Insecure bool `conf:"insecure"`

	// DisableUpdateCheck and DisableAnonymousSignature are accepted: no update check and no signature exist.
	DisableUpdateCheck        bool `conf:"disable_update_check"`
	DisableAnonymousSignature bool `conf:"disable_anonymous_signature"`

	Dev bool // started with -dev; no key

	// What is listened on and told to others, "HOST:PORT", worked out from the above. Advertised ones are "" when the
	// port is 0 (any): then it is what was listened on.
	Bind, Public Addresses

	// Warnings are what a person should know about this configuration, each with its place. Filled by Load.
	Warnings []string
	// Files are the files that were read, in order.
	Files []string

	tree *node // everything that was said, merged
}

// Addresses is an address for each port.
type Addresses struct {
	HTTP string `conf:"http"` // the HTTP API
	RPC  string `conf:"rpc"`  // agents among themselves
	Serf string `conf:"serf"` // gossip, TCP and UDP
}

// Ports are port numbers, 0 to 65535; 0 is any free port.
type Ports struct {
	HTTP int `conf:"http"` // default 4646
	RPC  int `conf:"rpc"`  // default 4647; only servers listen there
	Serf int `conf:"serf"` // default 4648; servers, and clients with gossip_join
}

// Server is the server part.
type Server struct {
	// Enabled makes this agent a server. Default: false.
	Enabled bool `conf:"enabled"`
	// BootstrapExpect is how many servers found the cluster together, 1 to 9, usually 3 or 5; the same on each.
	// Default and 0: join servers that have a cluster already.
	BootstrapExpect int `conf:"bootstrap_expect"`
	// Encrypt is the gossip key, 16, 24 or 32 bytes in base64, the same on every agent that gossips. Default: none.
	Encrypt string `conf:"encrypt"`
	// ServerJoin says which servers to join.
	ServerJoin ServerJoin `conf:"server_join"`
	// StartJoin and RetryJoin are the same as in server_join, and are joined to those.
	StartJoin []string `conf:"start_join"`
	RetryJoin []string `conf:"retry_join"`
	// RetryInterval is that of server_join when that has none.
	RetryInterval time.Duration `conf:"retry_interval"`
	// RaftMultiplier stretches the timing of elections, 1 to 10. Default and 0: 1, which is 300 ms.
	RaftMultiplier int `conf:"raft_multiplier"`
	// RaftTrailingLogs is how many log entries are kept behind a snapshot. Default and 0: 10,240.
	RaftTrailingLogs int64 `conf:"raft_trailing_logs"`
	// RaftSnapshotThreshold is how many new entries call for a snapshot. Default and 0: 16,384.
	RaftSnapshotThreshold int64 `conf:"raft_snapshot_threshold"`
	// RaftSnapshotInterval is the least time between two snapshots. Default and 0: 30s.
	RaftSnapshotInterval time.Duration `conf:"raft_snapshot_interval"`
	// RaftLogStore says how the raft log is stored on disk.
	RaftLogStore RaftLogStore `conf:"raft_logstore"`
	// RaftBoltDB is the older place of the block boltdb in raft_logstore; either sets it.
	RaftBoltDB BoltDB `conf:"raft_boltdb"`
}

// RaftLogStore says how the raft log is stored on disk.
type RaftLogStore struct {
	// Backend is "wal", files that are appended to, or "boltdb", a B-tree file. To change it, convert the log first, with
	// `muster operator raft migrate-backend`. Default: "wal".
	Backend string `conf:"backend"`
	// DisableLogCache reads recent entries from the backend instead of memory, to test it. Default: false.
	DisableLogCache bool `conf:"disable_log_cache"`
	// BoltDB tunes the backend boltdb.
	BoltDB BoltDB `conf:"boltdb"`
	// WAL tunes the backend wal.
	WAL WAL `conf:"wal"`
}

// BoltDB tunes the B-tree file of the raft log.
type BoltDB struct {
	// NoFreelistSync leaves the list of free pages out of each commit, and finds them again at the start. Default: false.
	NoFreelistSync bool `conf:"no_freelist_sync"`
}

// WAL tunes the files of the raft log that are appended to.
type WAL struct {
	// SegmentSizeMB is the size of a new file in MiB, 1 to 1024, allocated when the file is made. Default and 0: 16.
	SegmentSizeMB int `conf:"segment_size_mb"`
}

// ServerJoin says which servers to join. In server these are gossip addresses (port 4648), in client RPC addresses
// (4647); the port may be left out.
type ServerJoin struct {
	// StartJoin is tried once at the start; when no address answers, the agent ends.
	StartJoin []string `conf:"start_join"`
	// RetryJoin is tried until it works.
	RetryJoin []string `conf:"retry_join"`
	// RetryInterval is the time between two tries at most. Default and 0: 5s.
	RetryInterval time.Duration `conf:"retry_interval"`
}

// Client is the client part: it runs allocations.
type Client struct {
	// Enabled makes this agent run allocations. Default: false.
	Enabled bool `conf:"enabled"`
	// Servers are RPC addresses of servers, "HOST" or "HOST:PORT" (4647). Needed unless this agent is a server too.
	Servers []string `conf:"servers"`
	// ServerJoin adds to Servers.
	ServerJoin ServerJoin `conf:"server_join"`
	// GossipJoin are gossip addresses; with any, this agent gossips, so that its death is noticed at once. Ours.
	// Default: none, no gossip.
	GossipJoin []string `conf:"gossip_join"`
	// Options are free keys. Known are driver.raw_exec.enable, fingerprint.denylist (for nvidia) and user.denylist.
	Options map[string]string `conf:"options"`
	// Meta describes the node; jobs constrain on ${meta.KEY}.
	Meta map[string]string `conf:"meta"`
	// NodeClass groups nodes; jobs constrain on ${node.class}. Default: "".
	NodeClass string `conf:"node_class"`
	// NodePool is the pool the node belongs to. Default: "default".
	NodePool string `conf:"node_pool"`
	// Reserved is what is not given to allocations.
	Reserved Reserved `conf:"reserved"`
	// HostVolumes are directories that jobs may mount, by name.
	HostVolumes map[string]HostVolume `conf:"host_volume"`
	// NetworkInterface whose address allocations get. Default: that of the default route.
	NetworkInterface string `conf:"network_interface"`
	// BridgeNetworkName is the bridge of allocations whose group has network mode bridge; their nftables table is named after it. Default: "muster".
	BridgeNetworkName string `conf:"bridge_network_name"`
	// BridgeNetworkSubnet is the IPv4 network of their addresses, the first of which is the node's. Default: "172.26.64.0/20".
	BridgeNetworkSubnet string `conf:"bridge_network_subnet"`
	// NetworkSpeed in Mbit/s. Default and 0: what the interface says.
	NetworkSpeed int64 `conf:"network_speed"`
	// CPUTotalCompute in MHz, in place of what is found. Default and 0: found.
	CPUTotalCompute int64 `conf:"cpu_total_compute"`
	// MemoryTotalMB in MiB, in place of what is found. Default and 0: found.
	MemoryTotalMB int64 `conf:"memory_total_mb"`
	// DiskTotalMB in MiB, in place of what is found. Default and 0: found.
	DiskTotalMB int64 `conf:"disk_total_mb"`
	// AllocDir holds the allocations' directories. Default: data_dir/client/allocs.
	AllocDir string `conf:"alloc_dir"`
	// MinDynamicPort and MaxDynamicPort bound the ports given to tasks that ask for any. Default: 20000 and 32000.
	MinDynamicPort int `conf:"min_dynamic_port"`
	MaxDynamicPort int `conf:"max_dynamic_port"`
	// MaxKillTimeout bounds a task's kill_timeout. Default and 0: 30s.
	MaxKillTimeout time.Duration `conf:"max_kill_timeout"`
	// DrainOnShutdown moves the allocations away when the agent leaves the cluster. Default: nothing is moved.
	DrainOnShutdown *Drain `conf:"drain_on_shutdown"`
	// RunAs says whom tasks may run as that name a user. Ours. Default: everybody whom the drivers take.
	RunAs *RunAs `conf:"run_as"`
	// Fabric is the network that programs of several nodes talk over. Ours.
	Fabric Fabric `conf:"fabric"`
	// Hooks are the operator's commands on this node. Ours.
	Hooks Hooks `conf:"hooks"`
	// GPUIdle is after which time a task is told that it has GPUs and computes nothing on them, by an event: a GPU that is held and
	// not used is the dearest waste, and the event costs nothing. Ours. Default: 30m; 0s is never.
	GPUIdle time.Duration `conf:"gpu_idle"`
	// GPUPressure says when it is told that memory of GPUs runs full, and whom. Ours.
	GPUPressure GPUPressure `conf:"gpu_pressure"`
	// GCInterval is how often ended allocations are looked for. Default and 0: 1m.
	GCInterval time.Duration `conf:"gc_interval"`
	// GCDiskUsageThreshold in per cent of the disk: beyond it the oldest ended allocations are removed. Default and 0: 80.
	GCDiskUsageThreshold int `conf:"gc_disk_usage_threshold"`
	// GCInodeUsageThreshold is the same for inodes. Default and 0: 70.
	GCInodeUsageThreshold int `conf:"gc_inode_usage_threshold"`
	// GCMaxAllocs is how many ended allocations are kept. Default and 0: 50.
	GCMaxAllocs int `conf:"gc_max_allocs"`
	// GCMaxAge is how long ended allocations are kept at most. Ours. Default and 0: until another bound is passed.
	GCMaxAge time.Duration `conf:"gc_max_age"`
	// GCParallelDestroys is how many are removed at a time. Default and 0: 2.
	GCParallelDestroys int `conf:"gc_parallel_destroys"`
}

// RunAs says whom tasks may run as. A pattern is the name of a user of the node, with * and ? as in a shell, "@GROUP" for the
// members of a group, or "submitter" for who submitted the job, by the token that was used.
type RunAs struct {
	Allow []string `conf:"allow"` // default: everybody who is not denied; empty: nobody
	Deny  []string `conf:"deny"`  // wins over allow; default none (the exec plugin denies root by itself)
}

// Fabric tells tasks which network to use, as variables for NCCL, Gloo and PyTorch. What the job sets itself wins.
type Fabric struct {
	// Interfaces are network interfaces, the best first: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME. Default: none.
	Interfaces []string `conf:"interfaces"`
	// HCAs are RDMA adapters, "mlx5_0" or with a port "mlx5_0:1": NCCL_IB_HCA. Default: none.
	HCAs []string `conf:"hcas"`
	// Leaf is the switch that the node hangs on; it becomes the node's meta "leaf", unless meta says so itself. Default: "".
	Leaf string `conf:"leaf"`
	// ServiceLevel is the InfiniBand service level of RDMA traffic, 1 to 15, which switches give a lane of its own: NCCL_IB_SL, UCX_IB_SL.
	// Default: 0, programs choose.
	ServiceLevel int `conf:"service_level"`
	// TrafficClass is the traffic class of RDMA traffic over Ethernet (RoCE), 1 to 255: NCCL_IB_TC, UCX_IB_TRAFFIC_CLASS. Default: 0,
	// programs choose.
	TrafficClass int `conf:"traffic_class"`
	// RDMADir is where the device files of RDMA adapters are. Default: /dev/infiniband.
	RDMADir string `conf:"rdma_dir"`
	// Env are further variables for all tasks. Default: none.
	Env map[string]string `conf:"env"`
}

// Hooks are commands of the operator. One that fails drains the node, with its output as the reason. An agent does not start when the
// program of one is not there or cannot be executed.
type Hooks struct {
	Prolog Hook       `conf:"prolog"` // before the tasks of each allocation start; default none
	Epilog Hook       `conf:"epilog"` // after all of them have ended; default none
	Health HealthHook `conf:"health"` // when the agent starts, and every interval; default none
}

// Hook is one command. It runs as the agent's user, with MUSTER_HOOK, MUSTER_NODE_ID, and of an allocation MUSTER_ALLOC_ID,
// MUSTER_JOB_ID, MUSTER_NAMESPACE, MUSTER_GROUP_NAME, MUSTER_ALLOC_DIR and MUSTER_GPUS in its environment.
type Hook struct {
	Command []string      `conf:"command"` // the program, absolute, and its arguments
	Timeout time.Duration `conf:"timeout"` // after which it is killed and has failed; default and 0: 30s
}

// HealthHook is a command that is run again and again. A node that is enabled while it still fails drains again after its next run.
type HealthHook struct {
	Command  []string      `conf:"command"`  // the program, absolute, and its arguments
	Timeout  time.Duration `conf:"timeout"`  // after which it is killed and has failed; default and 0: 30s
	Interval time.Duration `conf:"interval"` // between two runs; default and 0: 1m
}

// GPUPressure says when it is told that memory of GPUs runs full. Thresholds are percentages, told once each time that
// the use has been below by clear.
type GPUPressure struct {
	Share    []int              `conf:"share"`   // of a task's share of a GPU: an event of the task, and a notice; default 90 and 98; [] for none
	Device   []int              `conf:"device"`  // of all of a GPU: an event of the node, and a notice; default none
	Clear    int                `conf:"clear"`   // percentage points below a threshold at which it can be told again; default and 0: 5
	Command  Hook               `conf:"command"` // run for each notice, with it in MUSTER_... variables; default none
	Webhooks map[string]Webhook `conf:"webhook"` // by name: who gets them; default none
}

// Webhook is who gets notices as POSTs of JSON.
type Webhook struct {
	URL        string            `conf:"url"`         // http or https
	Headers    map[string]string `conf:"headers"`     // sent along; default none
	SecretFile string            `conf:"secret_file"` // absolute; what it holds signs the body, in the header Muster-Signature; default none
	Timeout    time.Duration     `conf:"timeout"`     // of one attempt; default and 0: 5s
	Attempts   int               `conf:"attempts"`    // before a notice is given up, with growing pauses; default and 0: 5
}

// Reserved is what the machine keeps for itself.
type Reserved struct {
	CPU           int64  `conf:"cpu"`            // MHz; default 0
	Memory        int64  `conf:"memory"`         // MiB; default 0
	Disk          int64  `conf:"disk"`           // MiB; default 0
	Cores         string `conf:"cores"`          // "0-1,4"; default none
	ReservedPorts string `conf:"reserved_ports"` // "22,8000-8099"; default none
}

// HostVolume is a directory of the machine.
type HostVolume struct {
	Path     string `conf:"path"`      // absolute; must exist when an allocation mounts it
	ReadOnly bool   `conf:"read_only"` // default false
}

// Drain is how allocations are moved away.
type Drain struct {
	Deadline         time.Duration `conf:"deadline"`           // after which they are stopped; default and 0: 1m
	Force            bool          `conf:"force"`              // stop them at once; default false
	IgnoreSystemJobs bool          `conf:"ignore_system_jobs"` // leave those of system jobs; default false
}

// Plugin configures the drivers and what finds devices.
type Plugin struct {
	RawExec RawExecPlugin `conf:"raw_exec"`
	Exec    ExecPlugin    `conf:"exec"`
	Docker  DockerPlugin  `conf:"docker"`
	NVIDIA  NVIDIAPlugin  `conf:"nvidia"`
}

// RawExecPlugin is the driver that runs programs without a wall around them.
type RawExecPlugin struct {
	Config struct {
		Enabled bool `conf:"enabled"` // default false, true with -dev
	} `conf:"config"`
}

// ExecPlugin is the driver that runs programs in a container of their own.
type ExecPlugin struct {
	Config struct {
		// DefaultUser runs tasks that name no user. Ours. Default: nobody.
		DefaultUser string `conf:"default_user"`
		// DeniedUsers may not run tasks. Ours. The user.denylist of client.options is added. Default: root, when neither is set.
		DeniedUsers []string `conf:"denied_users"`
		// AllowCaps are the capabilities that tasks may have; "all" is all. Default: audit_write, chown, dac_override, fowner,
		// fsetid, kill, mknod, net_bind_service, setfcap, setgid, setpcap, setuid, sys_chroot.
		AllowCaps []string `conf:"allow_caps"`
		// Seccomp is "default" to restrict the system calls of tasks, "off" not to. Ours. Default: default.
		Seccomp string `conf:"seccomp"`
		// NoFile is how many open files a process of a task may have. Ours. Default and 0: the agent's own limit.
		NoFile int `conf:"nofile"`
		// RootDirs are directories below which a job's rootfs may be. Ours. Default: none, only the task's own directory.
		RootDirs []string `conf:"rootfs_dirs"`
	} `conf:"config"`
}

// DockerPlugin is the driver that runs containers of a Docker Engine.
type DockerPlugin struct {
	Config struct {
		// Enabled looks for the engine. Ours. Default: true.
		Enabled bool `conf:"enabled"`
		// Endpoint is where the engine listens. Default: $DOCKER_HOST, or unix:///var/run/docker.sock.
		Endpoint string `conf:"endpoint"`
		// AllowPrivileged lets tasks ask for privileged containers and for the host's namespaces: they own the machine
		// then. Default: false.
		AllowPrivileged bool `conf:"allow_privileged"`
		// AllowCaps are the capabilities that tasks may have; "all" is every one. Default: those of the engine without
		// net_raw.
		AllowCaps []string `conf:"allow_caps"`
		// AllowRuntimes are the engine's runtimes that tasks may name. Default: runc and nvidia.
		AllowRuntimes []string `conf:"allow_runtimes"`
		// AllowDevices are patterns of device files that tasks may name; GPUs are granted, not named. Ours. Default:
		// /dev/fuse, /dev/infiniband/*, /dev/kvm and /dev/net/tun.
		AllowDevices []string `conf:"allow_devices"`
		// Volumes are mounts of the host's directories and of the engine's volumes.
		Volumes struct {
			Enabled bool `conf:"enabled"` // tasks may mount any directory; default false: only their own and host volumes
		} `conf:"volumes"`
		// Auth is where registries' credentials come from when a job has none.
		Auth struct {
			Config string `conf:"config"` // a Docker client's config.json; default none
			Helper string `conf:"helper"` // runs docker-credential-HELPER; default none
		} `conf:"auth"`
		// PullActivityTimeout ends a pull that makes no progress. Default and 0: 2m.
		PullActivityTimeout time.Duration `conf:"pull_activity_timeout"`
		// GC removes what is not used any more.
		GC struct {
			Image      bool          `conf:"image"`       // images that this agent has pulled; default true
			ImageDelay time.Duration `conf:"image_delay"` // after their last use; default and 0: 3m
		} `conf:"gc"`
		// GPU is how containers get GPUs: "cdi", "runtime" (NVIDIA's), "devices" (the device files alone) or "auto", the
		// first of cdi and runtime that the engine has. Ours. Default: auto.
		GPU string `conf:"gpu"`
		// CDIDir is where CDI specifications for tasks are written; the engine must read it. Ours. Default: /var/run/cdi.
		CDIDir string `conf:"cdi_dir"`
	} `conf:"config"`
}

// NVIDIAPlugin finds the NVIDIA GPUs of the machine.
type NVIDIAPlugin struct {
	Config struct {
		// Enabled looks for GPUs. Default: true; "nvidia" in client.options "fingerprint.denylist" turns it off too.
		Enabled bool `conf:"enabled"`
		// IgnoredGPUIDs are UUIDs of GPUs that are left alone. Default: none.
		IgnoredGPUIDs []string `conf:"ignored_gpu_ids"`
		// FingerprintPeriod is the time between looks at memory, temperature and health. Default and 0: 5s.
		FingerprintPeriod time.Duration `conf:"fingerprint_period"`
		// Library is the driver's libnvidia-ml.so.1. Ours. Default: where the driver puts it.
		Library string `conf:"library"`
		// XID says what errors that the driver reports (XIDs) do to a GPU, by their numbers, over the defaults. What the GPU's
		// own counters say and what the driver asks for counts besides. Ours.
		XID XIDRules `conf:"xid"`
	} `conf:"config"`
}

// XIDRules are numbers of errors, 1 to 999, each in one list at most. Numbers in no list do what they did: 13, 31, 43, 45, 68 and 109
// are a program's fault, 63, 92 and 94 degrade, all others quarantine; 154, which announces what the driver asks for, is fixed.
type XIDRules struct {
	Ignore     []int `conf:"ignore"`     // nobody is told: the agent's log and the metrics have them; default none
	Program    []int `conf:"program"`    // a program's fault: the tasks on the GPU are told; default none
	Degrade    []int `conf:"degrade"`    // the GPU takes work, and says so, for ten minutes; default none
	Quarantine []int `conf:"quarantine"` // the GPU takes no new work until ten minutes are quiet; default none
}

// ACL is access control.
type ACL struct {
	// Enabled demands tokens. Default: false, everybody who reaches the agent may do everything.
	Enabled bool `conf:"enabled"`
}

// TLS encrypts and proves identities, with TLS 1.3. Certificates are made by `muster tls`; files are read again on
// SIGHUP.
type TLS struct {
	HTTP     bool   `conf:"http"`      // of the HTTP API; default false
	RPC      bool   `conf:"rpc"`       // between agents; default false
	CAFile   string `conf:"ca_file"`   // PEM; who is trusted
	CertFile string `conf:"cert_file"` // PEM; this agent's certificate
	KeyFile  string `conf:"key_file"`  // PEM; its key
	// VerifyServerHostname is accepted; server certificates are always checked for their role and region.
	VerifyServerHostname bool `conf:"verify_server_hostname"`
	// VerifyHTTPSClient demands certificates from clients of the HTTP API. Default: false.
	VerifyHTTPSClient bool `conf:"verify_https_client"`
}

// Limits are limits of connections from one address.
type Limits struct {
	HTTPMaxConnsPerClient int `conf:"http_max_conns_per_client"` // default 100; 0 is no limit
	RPCMaxConnsPerClient  int `conf:"rpc_max_conns_per_client"`  // without a verified certificate; default 100; 0 is no limit
}

// Telemetry is about figures. They are always kept and served at /v1/metrics, in JSON and for Prometheus.
type Telemetry struct {
	PrometheusMetrics        bool `conf:"prometheus_metrics"`         // accepted: always on
	PublishAllocationMetrics bool `conf:"publish_allocation_metrics"` // accepted: always on
	PublishNodeMetrics       bool `conf:"publish_node_metrics"`       // accepted: always on
	DisableHostname          bool `conf:"disable_hostname"`           // accepted: names never carry the host
}

// Defaults returns what a configuration says before any file is read.
func Defaults() *Config {
	c := &Config{
		Region: "global", Datacenter: "dc1", LogLevel: "INFO", LogRotateDuration: 24 * time.Hour,
		Ports:  Ports{HTTP: 4646, RPC: 4647, Serf: 4648},
		Limits: Limits{HTTPMaxConnsPerClient: 100, RPCMaxConnsPerClient: 100},
		Client: Client{NodePool: "default", GPUIdle: 30 * time.Minute},
	}
	c.Plugin.NVIDIA.Config.Enabled = true
	c.Plugin.Docker.Config.Enabled, c.Plugin.Docker.Config.GC.Image = true, true
	return c
}

// Reloadable is what SIGHUP changes in a running agent, besides the content of the certificate files.
type Reloadable struct {
	LogLevel string
}

// Reloadable is that part of the configuration.
func (c *Config) Reloadable() Reloadable { return Reloadable{LogLevel: c.LogLevel} }
