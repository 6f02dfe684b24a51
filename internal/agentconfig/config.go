package agentconfig

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Config is an agent's configuration. The tag of a field is its key in files. Unless its comment says otherwise, a
// change needs a restart, and a missing key is "" or 0, which is the default given.
type Config struct {
	// Name of this agent, unique within its region; the servers keep it with the node. Default: the host's name.
	Name string `conf:"name"`
	// Region is the set of servers that share one state. Default: "global".
	Region string `conf:"region"`
	// Datacenter of this agent; jobs choose by it. Default: "dc1".
	Datacenter string `conf:"datacenter"`
	// DataDir is the directory of the servers' log and snapshots and the client's identity, state and allocations. Required, except
	// with -dev, where a missing key means a temporary directory that is removed at the end, with the tasks, also when the agent is killed. Made absolute.
	DataDir string `conf:"data_dir"`
	// BindAddr is the IP address that all ports listen on. Default: 127.0.0.1; 0.0.0.0 (all addresses) once TLS, ACLs
	// and a gossip key are configured.
	BindAddr string `conf:"bind_addr"`
	// Addresses binds individual ports to other addresses.
	Addresses Addresses `conf:"addresses"`
	// Advertise is the address at which others reach this agent, "HOST" or "HOST:PORT". Default: the bound address, and
	// for 0.0.0.0 the address of the default route.
	Advertise Addresses `conf:"advertise"`
	// Ports are the numbers of the ports.
	Ports Ports `conf:"ports"`

	Server Server `conf:"server"` // the server part
	Client Client `conf:"client"` // the client part
	Plugin Plugin `conf:"plugin"` // the drivers

	ACL       ACL       `conf:"acl"`       // access control
	TLS       TLS       `conf:"tls"`       // encryption between agents and of the HTTP API
	Limits    Limits    `conf:"limits"`    // on clients
	Telemetry Telemetry `conf:"telemetry"` // where metrics are sent

	// LogLevel is the least severe level that is logged: TRACE, DEBUG, INFO, WARN, ERROR or OFF. Default: INFO.
	// Reloadable.
	LogLevel string `conf:"log_level"`
	// LogJSON writes log lines as JSON objects. Default: false.
	LogJSON bool `conf:"log_json"`
	// LogIncludeLocation adds file and line of the program to log lines. Default: false.
	LogIncludeLocation bool `conf:"log_include_location"`
	// LogFile gets the log in addition to standard error. A name that ends with / is a directory, in which muster.log
	// is written. Default: "", no file.
	LogFile string `conf:"log_file"`
	// LogRotateBytes starts a new file when the current one would exceed this many bytes. Default: 0, no limit.
	LogRotateBytes int64 `conf:"log_rotate_bytes"`
	// LogRotateDuration starts a new file after this time. Default and 0: 24h.
	LogRotateDuration time.Duration `conf:"log_rotate_duration"`
	// LogRotateMaxFiles is how many older files are kept; 0, the default, keeps all, a negative number none.
	LogRotateMaxFiles int `conf:"log_rotate_max_files"`

	// LeaveOnInterrupt leaves the cluster on SIGINT instead of ending at once. Default: false.
	LeaveOnInterrupt bool `conf:"leave_on_interrupt"`
	// LeaveOnTerminate leaves the cluster on SIGTERM instead of ending at once. Default: false.
	LeaveOnTerminate bool `conf:"leave_on_terminate"`
	// EnableDebug serves profiles (/debug/pprof) to users who may read the agent. Default: false, management only.
	EnableDebug bool `conf:"enable_debug"`

	// Insecure allows serving addresses beyond this machine without TLS, ACLs or a gossip key: anyone who reaches them
	// may run programs here. Default: false.
	Insecure bool `conf:"insecure"`

	// HTTPAllowedHosts are further host names of this agent's HTTP API, such as the one of a proxy; "*.example.com" means
	// all names below example.com. The agent always answers to IP addresses, localhost, its own name, the machine's name,
	// its advertised addresses and the names in its certificate. Requests with another Host header are refused, because a
	// web page can give its own name the agent's address. Default: none.
	HTTPAllowedHosts []string `conf:"http_allowed_hosts"`

	// DisableUpdateCheck and DisableAnonymousSignature are accepted without effect: there is no update check and no
	// signature.
	DisableUpdateCheck        bool `conf:"disable_update_check"`
	DisableAnonymousSignature bool `conf:"disable_anonymous_signature"`

	Dev bool // started with -dev; no key

	// The addresses to listen on and those advertised to others, "HOST:PORT", computed by Load. An advertised one is ""
	// when the port is 0 (any): then it is the address that was bound.
	Bind, Public Addresses

	// Warnings are notes about this configuration for the operator, each with its place. Filled by Load.
	Warnings []string
	// Files are the files that were read, in order.
	Files []string

	tree *node // all sources merged
}

// Addresses is an address for each port.
type Addresses struct {
	HTTP string `conf:"http"` // the HTTP API
	RPC  string `conf:"rpc"`  // calls between agents
	Serf string `conf:"serf"` // gossip, TCP and UDP
}

// Ports are port numbers, 0 to 65535; 0 is any free port.
type Ports struct {
	HTTP int `conf:"http"` // default 4646
	RPC  int `conf:"rpc"`  // default 4647; only servers listen there
	Serf int `conf:"serf"` // default 4648; TCP and UDP
}

// Server configures the server.
type Server struct {
	// Enabled makes this agent a server. Default: false.
	Enabled bool `conf:"enabled"`
	// BootstrapExpect is how many servers found the cluster together, 1 to 9, usually 3 or 5; the same on each.
	// Default and 0: join servers that have a cluster already.
	BootstrapExpect int `conf:"bootstrap_expect"`
	// Encrypt is the gossip key, 16, 24 or 32 bytes in base64, the same on every agent that gossips. A server whose keys
	// were changed by `muster operator gossip keyring` has them in the file server/gossip.keyring of data_dir, which then
	// counts instead. Default: none.
	Encrypt string `conf:"encrypt"`
	// JoinKey proves to other servers that this is one where ACLs are enabled and tls.rpc is not: 32 bytes in base64, the
	// same on every server and on nothing else, made by `muster operator join-key generate`. Regions that forward calls to
	// each other need the same one. A changed key takes effect when all servers have been restarted with it. Ours.
	// Default: none, and no other server can join.
	JoinKey string `conf:"join_key"`
	// OIDCIssuer is the issuer in workload identities: the URL under which verifiers reach
	// /.well-known/openid-configuration of the servers; the same on each server. Default: none.
	OIDCIssuer string `conf:"oidc_issuer"`
	// ServerJoin lists the servers to join.
	ServerJoin ServerJoin `conf:"server_join"`
	// StartJoin and RetryJoin are the same as in server_join; their addresses are added to those.
	StartJoin []string `conf:"start_join"`
	RetryJoin []string `conf:"retry_join"`
	// RetryInterval is used when server_join has none.
	RetryInterval time.Duration `conf:"retry_interval"`
	// DecisionLog is a file that gets the decision log, a JSON object a line, as GET /v1/decisions has them: the cluster
	// itself keeps 65,536 rows. Each server that has the setting writes all rows, also those of the time in which it did not
	// run, as far as the cluster still has them; a line with "Missed" counts those that it has not. It is rotated as
	// log_file is, and a name that ends with / is a directory, in which decisions.jsonl is written. Default: "", no file.
	DecisionLog string `conf:"decision_log"`
	// RestartGrace is how long after its last heartbeat a node keeps its work when its agent has ended while its machine
	// answers, but never less than its heartbeats give it, about 16 s; set it on all servers. Work with
	// stop_on_client_after waits no longer than that. At most 1h. Ours. Default and 0: 60s.
	RestartGrace time.Duration `conf:"restart_grace"`
	// GossipNodes is how many nodes a region may have for its agents to gossip, so that the loss of a machine is noticed
	// within seconds; with more, only heartbeats count. The same on all servers. -1: agents do not gossip. At most 10000.
	// Ours. Default and 0: 2000.
	GossipNodes int `conf:"gossip_nodes"`
	// JobMaxPriority is the highest priority that jobs may have, 1 to 100, in every queue and namespace; the same
	// on all servers. Jobs that are there keep theirs. Default and 0: 100.
	JobMaxPriority int `conf:"job_max_priority"`
	// JobDefaultPriority is the priority of jobs that have none, where neither queue nor namespace has a default; the same on
	// all servers. Default and 0: 50.
	JobDefaultPriority int `conf:"job_default_priority"`
	// JobGCInterval is the time between two rounds that delete what has ended; these settings are the leader's, so set them
	// alike on all servers. 1s to 24h. Default and 0: 5m.
	JobGCInterval time.Duration `conf:"job_gc_interval"`
	// JobGCThreshold is how long a job that has ended or was stopped is kept, with its allocations. Default and 0: 4h.
	JobGCThreshold time.Duration `conf:"job_gc_threshold"`
	// EvalGCThreshold is how long evaluations are kept, and ended allocations that their job has replaced. Default and 0: 1h.
	EvalGCThreshold time.Duration `conf:"eval_gc_threshold"`
	// BatchEvalGCThreshold is how long ended allocations of a batch job that has ended are kept; where job_gc_threshold is
	// shorter they go with their job. Default and 0: 24h.
	BatchEvalGCThreshold time.Duration `conf:"batch_eval_gc_threshold"`
	// NodeGCThreshold is how long a node that is down is kept. Default and 0: 24h.
	NodeGCThreshold time.Duration `conf:"node_gc_threshold"`
	// AcctRetention is how long the accounting records that `muster acct` lists are kept. Ours. Default and 0: 720h, 30 days.
	AcctRetention time.Duration `conf:"acct_retention"`
	// AcctMaxRecords is how many accounting records are kept; the oldest go first. 100 to 100000. Ours.
	// Default and 0: 100000.
	AcctMaxRecords int64 `conf:"acct_max_records"`
	// BundlesMaxMB is how many MiB of bundles, the directories that `muster run -pack` sends, a server keeps; every server
	// keeps all that jobs use. One namespace may have three times what is left for all, so three quarters of it alone.
	// -1: it takes none. Ours. Default and 0: 10240.
	BundlesMaxMB int64 `conf:"bundles_max_mb"`
	// RaftMultiplier stretches the timing of elections, 1 to 10. Default and 0: 1. A leader that is silent is then replaced
	// after 300 ms where nothing has stalled for 10 seconds, and after 1 to 3 seconds otherwise. It stretches the leader's
	// lease of 1 s as well: how long a leader that is cut off may believe that it leads.
	RaftMultiplier int `conf:"raft_multiplier"`
	// RaftTrailingLogs is how many log entries are kept after a snapshot. Default and 0: 10,240.
	RaftTrailingLogs int64 `conf:"raft_trailing_logs"`
	// RaftSnapshotThreshold is how many new entries trigger a snapshot. Default and 0: 16,384.
	RaftSnapshotThreshold int64 `conf:"raft_snapshot_threshold"`
	// RaftSnapshotInterval is the least time between two snapshots. Default and 0: 30s.
	RaftSnapshotInterval time.Duration `conf:"raft_snapshot_interval"`
	// RaftLogStore configures how the raft log is stored on disk.
	RaftLogStore RaftLogStore `conf:"raft_logstore"`
	// RaftBoltDB is the older place of the block boltdb in raft_logstore; either sets it.
	RaftBoltDB BoltDB `conf:"raft_boltdb"`
}

// RaftLogStore configures how the raft log is stored on disk.
type RaftLogStore struct {
	// Backend is "wal", files that are appended to, or "boltdb", a B-tree file. To change it, first convert the log
	// with `muster operator raft migrate-backend`. Default: "wal".
	Backend string `conf:"backend"`
	// DisableLogCache reads recent entries from the backend instead of memory, for tests. Default: false.
	DisableLogCache bool `conf:"disable_log_cache"`
	// BoltDB tunes the backend boltdb.
	BoltDB BoltDB `conf:"boltdb"`
	// WAL tunes the backend wal.
	WAL WAL `conf:"wal"`
}

// BoltDB tunes the B-tree file of the raft log.
type BoltDB struct {
	// NoFreelistSync leaves the list of free pages out of each commit and rebuilds it at the start. Default: false.
	NoFreelistSync bool `conf:"no_freelist_sync"`
}

// WAL tunes the files of the raft log that are appended to.
type WAL struct {
	// SegmentSizeMB is the size of a new file in MiB, 1 to 1024, allocated when the file is made. Default and 0: 16.
	SegmentSizeMB int `conf:"segment_size_mb"`
}

// ServerJoin lists the servers to join. In server these are gossip addresses (port 4648), in client RPC addresses
// (4647); the port may be left out.
type ServerJoin struct {
	// StartJoin is tried once at the start; if no address answers, the agent ends.
	StartJoin []string `conf:"start_join"`
	// RetryJoin is tried until each address has answered once.
	RetryJoin []string `conf:"retry_join"`
	// RetryInterval is the longest time between two tries. Default and 0: 5s. In client it has no effect, and the agent warns of
	// it: a client tries its servers until one answers, at most 5 s apart.
	RetryInterval time.Duration `conf:"retry_interval"`
}

// Client configures the client, which runs allocations.
type Client struct {
	// Enabled makes this agent run allocations. Default: false.
	Enabled bool `conf:"enabled"`
	// Servers are RPC addresses of servers, "HOST" or "HOST:PORT" (4647). Needed unless this agent is a server too.
	Servers []string `conf:"servers"`
	// ServerJoin lists further servers to join, in addition to Servers.
	ServerJoin ServerJoin `conf:"server_join"`
	// IntroToken permits the first registration of this node where ACLs are enabled and tls.rpc is not; `muster node intro
	// create` makes one. It is used up by the registration and may stay here. Default: none.
	IntroToken string `conf:"intro_token"`
	// GossipJoin are gossip addresses of servers to join at the start; without them the agent joins when it has registered
	// and the servers ask for it (server.gossip_nodes). Ours. Default: none.
	GossipJoin []string `conf:"gossip_join"`
	// Options are free keys. Known are driver.raw_exec.enable, fingerprint.denylist (for nvidia) and user.denylist.
	Options map[string]string `conf:"options"`
	// Meta describes the node; jobs can constrain on ${meta.KEY}.
	Meta map[string]string `conf:"meta"`
	// NodeClass groups nodes; jobs can constrain on ${node.class}. Default: "".
	NodeClass string `conf:"node_class"`
	// NodePool is the pool the node belongs to. Default: "default".
	NodePool string `conf:"node_pool"`
	// Reserved is the part of the machine that allocations do not get.
	Reserved Reserved `conf:"reserved"`
	// HostVolumes are directories that jobs may mount, by name.
	HostVolumes map[string]HostVolume `conf:"host_volume"`
	// NetworkInterface is the interface whose address allocations get. Default: that of the default route.
	NetworkInterface string `conf:"network_interface"`
	// BridgeNetworkName is the bridge of allocations whose group has network mode bridge; their nftables table has the
	// same name. Default: "muster".
	BridgeNetworkName string `conf:"bridge_network_name"`
	// BridgeNetworkSubnet is the IPv4 network of their addresses, the first of which is the node's. Default: "172.26.64.0/20".
	BridgeNetworkSubnet string `conf:"bridge_network_subnet"`
	// NetworkSpeed is the speed of the interface in Mbit/s. Default and 0: detected.
	NetworkSpeed int64 `conf:"network_speed"`
	// CPUTotalCompute replaces the detected compute, in MHz. Default and 0: detected.
	CPUTotalCompute int64 `conf:"cpu_total_compute"`
	// MemoryTotalMB replaces the detected memory, in MiB. Default and 0: detected.
	MemoryTotalMB int64 `conf:"memory_total_mb"`
	// DiskTotalMB replaces the detected size of the disk, in MiB. Default and 0: detected.
	DiskTotalMB int64 `conf:"disk_total_mb"`
	// AllocDir holds the allocations' directories. Default: data_dir/client/allocs.
	AllocDir string `conf:"alloc_dir"`
	// MinDynamicPort and MaxDynamicPort are the range of ports for tasks that ask for any port. Default: 20000 and
	// 32000.
	MinDynamicPort int `conf:"min_dynamic_port"`
	MaxDynamicPort int `conf:"max_dynamic_port"`
	// MaxKillTimeout is the upper limit of a task's kill_timeout. Default and 0: 30s.
	MaxKillTimeout time.Duration `conf:"max_kill_timeout"`
	// DrainOnShutdown moves the allocations to other nodes when the agent leaves the cluster. Default: no allocation is
	// moved.
	DrainOnShutdown *Drain `conf:"drain_on_shutdown"`
	// RunAs sets which users tasks may run as. Ours. Default: see allow.
	RunAs *RunAs `conf:"run_as"`
	// Egress sets the addresses that the agent connects to for URLs in jobs: of artifacts, checks and checkpoints. Ours.
	Egress Egress `conf:"egress"`
	// Fabric is the network between the programs of a distributed job. Ours.
	Fabric Fabric `conf:"fabric"`
	// Hooks are the operator's commands on this node. Ours.
	Hooks Hooks `conf:"hooks"`
	// GPUIdle is the time after which a task that has GPUs and computes nothing on them gets an event that says so.
	// Ours. Default: 30m; 0s is never.
	GPUIdle time.Duration `conf:"gpu_idle"`
	// GPUPressure configures notices about GPU memory that runs full. Ours.
	GPUPressure GPUPressure `conf:"gpu_pressure"`
	// GCInterval is the time between two collections of ended allocations. Default and 0: 1m.
	GCInterval time.Duration `conf:"gc_interval"`
	// GCDiskUsageThreshold is a percentage of the disk; above it the oldest ended allocations are removed. Default and
	// 0: 80.
	GCDiskUsageThreshold int `conf:"gc_disk_usage_threshold"`
	// GCInodeUsageThreshold is the same for inodes. Default and 0: 70.
	GCInodeUsageThreshold int `conf:"gc_inode_usage_threshold"`
	// GCMaxAllocs is how many ended allocations are kept. Default and 0: 50.
	GCMaxAllocs int `conf:"gc_max_allocs"`
	// GCMaxAge is how long ended allocations are kept at most. Ours. Default and 0: no limit.
	GCMaxAge time.Duration `conf:"gc_max_age"`
	// GCParallelDestroys is how many are removed at the same time. Default and 0: 2.
	GCParallelDestroys int `conf:"gc_parallel_destroys"`
}

// RunAs sets which users tasks may run as. A pattern is the name of a user of the node, with * and ? as in a shell,
// "@GROUP" for the members of a group, "submitter" for the user who submitted the job, if they logged in as a user of a
// machine at an agent's unix socket, or "token-name" for the user with the name of the submitter's token. A task always may
// name the user that it would run as without one. It gets that user's other groups only if it is the submitter. Numbers of
// users in a docker task's user count as the users of the node that have them.
type RunAs struct {
	Allow []string `conf:"allow"` // default: submitter and nobody; empty: none; "*": all users that the drivers accept
	Deny  []string `conf:"deny"`  // wins over allow; default none (the exec plugin itself denies root)
}

// Egress adds to the addresses that the agent refuses for URLs in jobs: link-local, multicast and the metadata services of
// clouds, and for artifacts also loopback. It is checked when the agent connects, so also for redirects. Where the
// environment names a proxy for artifacts, the proxy connects, and the host of the URL is checked before.
type Egress struct {
	Allow []string `conf:"allow"` // ranges such as 10.0.0.0/8 that are not refused; default none, loopback with -dev
	Deny  []string `conf:"deny"`  // ranges that are refused as well; they win over allow; default none
}

// Fabric sets variables for NCCL, Gloo and PyTorch that select the network for tasks. Variables that the job sets win.
type Fabric struct {
	// Interfaces are network interfaces, the best first: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME. Default: none.
	Interfaces []string `conf:"interfaces"`
	// HCAs are RDMA adapters, "mlx5_0" or with a port "mlx5_0:1": NCCL_IB_HCA. Default: none.
	HCAs []string `conf:"hcas"`
	// Leaf is the switch that the node is connected to; it becomes the node's meta "leaf", unless meta sets that.
	// Default: "".
	Leaf string `conf:"leaf"`
	// ServiceLevel is the InfiniBand service level of RDMA traffic, 1 to 15, which switches map to a separate lane:
	// NCCL_IB_SL, UCX_IB_SL. Default: 0, programs choose.
	ServiceLevel int `conf:"service_level"`
	// TrafficClass is the traffic class of RDMA traffic over Ethernet (RoCE), 1 to 255: NCCL_IB_TC, UCX_IB_TRAFFIC_CLASS. Default: 0,
	// programs choose.
	TrafficClass int `conf:"traffic_class"`
	// RDMADir is the directory of the device files of RDMA adapters. Default: /dev/infiniband.
	RDMADir string `conf:"rdma_dir"`
	// Env is a set of further variables for all tasks. Default: none.
	Env map[string]string `conf:"env"`
}

// Hooks are commands of the operator. A command that fails drains the node, with its output as the reason. The agent
// does not start if the program of a hook is missing or cannot be executed.
type Hooks struct {
	Prolog Hook       `conf:"prolog"` // before the tasks of each allocation start; default none
	Epilog Hook       `conf:"epilog"` // after all of them have ended; default none
	Health HealthHook `conf:"health"` // when the agent starts, and every interval; default none
}

// Hook is one command. It runs as the agent's user, with MUSTER_HOOK and MUSTER_NODE_ID in its environment, and for an
// allocation also MUSTER_ALLOC_ID, MUSTER_JOB_ID, MUSTER_NAMESPACE, MUSTER_GROUP_NAME, MUSTER_ALLOC_DIR and
// MUSTER_GPUS.
type Hook struct {
	Command []string      `conf:"command"` // the absolute path of the program, and its arguments
	Timeout time.Duration `conf:"timeout"` // after this time the command is killed and has failed; default and 0: 30s
}

// HealthHook is a command that runs periodically. If a node is made eligible while it still fails, the node drains
// again after the next run.
type HealthHook struct {
	Command  []string      `conf:"command"`  // the absolute path of the program, and its arguments
	Timeout  time.Duration `conf:"timeout"`  // after this time the command is killed and has failed; default and 0: 30s
	Interval time.Duration `conf:"interval"` // between two runs; default and 0: 1m
}

// GPUPressure configures notices about GPU memory that runs full. Thresholds are percentages; each is reported once,
// and again after the use has fallen below it by clear.
type GPUPressure struct {
	Share    []int              `conf:"share"`   // of a task's share of a GPU, each an event of the task and a notice; default 90 and 98; [] for none
	Device   []int              `conf:"device"`  // of a whole GPU, each an event of the node and a notice; default none
	Clear    int                `conf:"clear"`   // percentage points that the use must fall below a threshold before it is reported again; default and 0: 5
	Command  Hook               `conf:"command"` // runs for each notice, which it gets in MUSTER_... variables; default none
	Webhooks map[string]Webhook `conf:"webhook"` // receivers of notices, by name; default none
}

// Webhook is a receiver of notices, sent as POSTs of JSON.
type Webhook struct {
	URL        string            `conf:"url"`         // http or https
	Headers    map[string]string `conf:"headers"`     // headers of each request; default none
	SecretFile string            `conf:"secret_file"` // absolute path of a file with the key that signs the body, in the header Muster-Signature; default none
	Timeout    time.Duration     `conf:"timeout"`     // of one attempt; default and 0: 5s
	Attempts   int               `conf:"attempts"`    // attempts before a notice is given up, with growing pauses; default and 0: 5
}

// Reserved is the part of the machine that allocations do not get.
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

// Drain configures how allocations are moved to other nodes.
type Drain struct {
	Deadline         time.Duration `conf:"deadline"`           // after this time the allocations are stopped; default and 0: 1m
	Force            bool          `conf:"force"`              // stop the allocations at once; default false
	IgnoreSystemJobs bool          `conf:"ignore_system_jobs"` // leave allocations of system jobs running; default false
}

// Plugin configures the drivers and the detection of devices.
type Plugin struct {
	RawExec RawExecPlugin `conf:"raw_exec"`
	Exec    ExecPlugin    `conf:"exec"`
	Docker  DockerPlugin  `conf:"docker"`
	NVIDIA  NVIDIAPlugin  `conf:"nvidia"`
}

// RawExecPlugin is the driver that runs programs without isolation.
type RawExecPlugin struct {
	Config struct {
		Enabled bool `conf:"enabled"` // default false, true with -dev
	} `conf:"config"`
}

// ExecPlugin is the driver that runs each task in a separate container, without a container engine.
type ExecPlugin struct {
	Config struct {
		// DefaultUser is the user of tasks that set none. Ours. Default: nobody.
		DefaultUser string `conf:"default_user"`
		// DeniedUsers are users that tasks may not run as. Ours. The user.denylist of client.options is added. Default:
		// root, when neither is set.
		DeniedUsers []string `conf:"denied_users"`
		// AllowCaps are the capabilities that tasks may have; "all" allows every capability. Default: audit_write,
		// chown, dac_override, fowner, fsetid, kill, mknod, net_bind_service, setfcap, setgid, setpcap, setuid,
		// sys_chroot.
		AllowCaps []string `conf:"allow_caps"`
		// Seccomp is "default" to restrict the system calls of tasks, or "off". Ours. Default: default.
		Seccomp string `conf:"seccomp"`
		// NoFile is how many open files a process of a task may have. Ours. Default and 0: the agent's own limit.
		NoFile int `conf:"nofile"`
		// RootDirs are directories that may contain a job's rootfs. Ours. Default: none, only the task's directory.
		RootDirs []string `conf:"rootfs_dirs"`
	} `conf:"config"`
}

// DockerPlugin is the driver that runs containers with a Docker Engine.
type DockerPlugin struct {
	Config struct {
		// Enabled turns on the driver if there is an engine. Ours. Default: true.
		Enabled bool `conf:"enabled"`
		// Endpoint is the address of the engine. Default: $DOCKER_HOST, or unix:///var/run/docker.sock.
		Endpoint string `conf:"endpoint"`
		// AllowPrivileged lets tasks ask for privileged containers and for the host's namespaces, which gives them
		// control of the machine. Default: false.
		AllowPrivileged bool `conf:"allow_privileged"`
		// AllowCaps are the capabilities that tasks may have; "all" allows every capability. Default: those of the
		// engine without net_raw.
		AllowCaps []string `conf:"allow_caps"`
		// AllowRuntimes are the engine's runtimes that tasks may select. Default: runc and nvidia.
		AllowRuntimes []string `conf:"allow_runtimes"`
		// AllowDevices are patterns of device files that tasks may list; GPUs are allocated by the scheduler instead.
		// Ours. Default: /dev/fuse, /dev/infiniband/*, /dev/kvm and /dev/net/tun.
		AllowDevices []string `conf:"allow_devices"`
		// Volumes configures mounts of the host's directories and of the engine's volumes.
		Volumes struct {
			Enabled bool `conf:"enabled"` // tasks may mount any directory; default false: only their own and host volumes
		} `conf:"volumes"`
		// Auth is the source of registry credentials for jobs that have none.
		Auth struct {
			Config string `conf:"config"` // a Docker client's config.json; default none
			Helper string `conf:"helper"` // runs docker-credential-HELPER; default none
		} `conf:"auth"`
		// PullActivityTimeout ends a pull that makes no progress. Default and 0: 2m.
		PullActivityTimeout time.Duration `conf:"pull_activity_timeout"`
		// GC removes images that are no longer used.
		GC struct {
			Image      bool          `conf:"image"`       // images that this agent pulled; default true
			ImageDelay time.Duration `conf:"image_delay"` // time since their last use; default and 0: 3m
		} `conf:"gc"`
		// GPU is how containers get GPUs: "cdi", "runtime" (NVIDIA's), "devices" (only the device files) or "auto", the
		// first of cdi and runtime that the engine has. Ours. Default: auto.
		GPU string `conf:"gpu"`
		// CDIDir is the directory in which CDI specifications for tasks are written; the engine must read it. Ours.
		// Default: /var/run/cdi.
		CDIDir string `conf:"cdi_dir"`
	} `conf:"config"`
}

// NVIDIAPlugin configures the detection of NVIDIA GPUs.
type NVIDIAPlugin struct {
	Config struct {
		// Enabled turns on the detection of GPUs. Default: true; "nvidia" in client.options "fingerprint.denylist"
		// turns it off too.
		Enabled bool `conf:"enabled"`
		// IgnoredGPUIDs are UUIDs of GPUs that the agent does not use. Default: none.
		IgnoredGPUIDs []string `conf:"ignored_gpu_ids"`
		// FingerprintPeriod is the time between checks of memory, temperature and health. Default and 0: 5s.
		FingerprintPeriod time.Duration `conf:"fingerprint_period"`
		// Library is the path of the driver's libnvidia-ml.so.1. Ours. Default: the driver's usual directories.
		Library string `conf:"library"`
		// XID sets the effect on a GPU of errors that the driver reports (XIDs), by number, over the defaults. The
		// GPU's own counters and the action that the driver recommends count in addition. Ours.
		XID XIDRules `conf:"xid"`
	} `conf:"config"`
}

// XIDRules are numbers of errors, 1 to 999, each in at most one list. Numbers in no list keep their defaults: 13, 31,
// 43, 45, 68 and 109 are a program's fault, 63, 92 and 94 degrade, all others quarantine; 154, which announces the
// recovery that the driver recommends, cannot be changed.
type XIDRules struct {
	Ignore     []int `conf:"ignore"`     // only the agent's log and the metrics record it; default none
	Program    []int `conf:"program"`    // a program's fault: the tasks on the GPU get an event; default none
	Degrade    []int `conf:"degrade"`    // the GPU still takes work, marked as degraded for ten minutes; default none
	Quarantine []int `conf:"quarantine"` // the GPU takes no new work until ten minutes without an error; default none
}

// ACL is access control.
type ACL struct {
	// Enabled makes requests need a token. Default: false, anyone who reaches the agent may do everything.
	Enabled bool `conf:"enabled"`
	// LoginNodes are the IDs of nodes whose agents may log in every user of their machine at the unix socket, with the
	// user's groups; "*" means all nodes. Agents of other nodes log in only users who submitted what runs there, without
	// groups. The same on each server. Default: none, ["*"] with -dev.
	LoginNodes []string `conf:"login_nodes"`
}

// AllNodes in acl.login_nodes stands for every node.
const AllNodes = "*"

// TLS encrypts connections and proves identities, with TLS 1.3. Certificates are made by `muster tls`; files are read
// again on SIGHUP.
type TLS struct {
	HTTP     bool   `conf:"http"`      // of the HTTP API; default false
	RPC      bool   `conf:"rpc"`       // between agents; default false
	CAFile   string `conf:"ca_file"`   // PEM; trusted certificates
	CertFile string `conf:"cert_file"` // PEM; this agent's certificate
	KeyFile  string `conf:"key_file"`  // PEM; its key
	// VerifyServerHostname is accepted; server certificates are always checked for their role and region.
	VerifyServerHostname bool `conf:"verify_server_hostname"`
	// VerifyHTTPSClient requires certificates from clients of the HTTP API. Default: false.
	VerifyHTTPSClient bool `conf:"verify_https_client"`
}

// Limits are limits on clients. A client of the HTTP API is an IP address, or a user of this machine at the unix socket.
type Limits struct {
	// HTTPMaxConnsPerClient is how many connections to the HTTP API a client may have open. Default: 100; 0 is no limit.
	HTTPMaxConnsPerClient int `conf:"http_max_conns_per_client"`
	// HTTPMaxConns is how many connections to the HTTP API may be open, those of tasks included. Root and the agent's own
	// user can connect to the unix socket beyond it. Default and 0: 16,384, at most half of the agent's limit of open
	// files.
	HTTPMaxConns int `conf:"http_max_conns"`
	// HTTPMaxRatePerClient is how many requests a second a client of the HTTP API may send; four seconds' worth may come at
	// once. Further ones are answered with 429 and Retry-After. Root at the unix socket has no limit. Default: 5,000; 0 is
	// no limit.
	HTTPMaxRatePerClient int `conf:"http_max_rate_per_client"`
	// HTTPMaxRatePerToken is the same for the requests with one token. Default: 5,000; 0 is no limit.
	HTTPMaxRatePerToken int `conf:"http_max_rate_per_token"`
	// HTTPWrongTokenDelay is how much later a request whose token does not exist is answered. Sixteen of a client wait at
	// a time; further ones are answered with 429. Default: 100ms; 0 is no delay.
	HTTPWrongTokenDelay time.Duration `conf:"http_wrong_token_delay"`
	// RPCMaxConnsPerClient is how many connections without a verified certificate an IP address may have to the RPC port.
	// Default: 100; 0 is no limit.
	RPCMaxConnsPerClient int `conf:"rpc_max_conns_per_client"`
	// AllocMaxRatePerToken is how many allocations a second a token without management rights, or a user who logs in at
	// nodes, may ask this cluster for; 100,000 may come at once. Every 4,096 bytes of a request that writes count as one.
	// Further writes are answered with 429 and Retry-After. The setting of the leading server counts. Default: 1,000; 0 is no
	// limit.
	AllocMaxRatePerToken int `conf:"alloc_max_rate_per_token"`
}

// Telemetry says where metrics are sent. They are always served at /v1/metrics, in JSON and for Prometheus; see
// docs/reference/metrics.md.
type Telemetry struct {
	// UnauthenticatedMetricsAccess serves /v1/metrics without a token, for scrapers that send none. Metrics name jobs,
	// namespaces and users. Default: false, with ACLs a reader needs the rule agent { policy = "read" }.
	UnauthenticatedMetricsAccess bool     `conf:"unauthenticated_metrics_access"`
	StatsdAddress                string   `conf:"statsd_address"`   // HOST:PORT of a statsd, over UDP; default: none
	StatsiteAddress              string   `conf:"statsite_address"` // HOST:PORT of a statsite, over TCP; default: none
	DatadogAddress               string   `conf:"datadog_address"`  // HOST:PORT of a DogStatsD, over UDP, or unix:///PATH of its socket; default: none
	DatadogTags                  []string `conf:"datadog_tags"`     // added to everything that DogStatsD gets
	// CollectionInterval is the time between two looks at counters and gauges; /v1/metrics in JSON has counters and samples of
	// one such interval. Default: 10s.
	CollectionInterval time.Duration `conf:"collection_interval"`
	// DisableHostname leaves the machine's name out of the names of gauges that statsd and statsite get. Without it they are
	// muster.HOST.PART.NAME.
	DisableHostname bool `conf:"disable_hostname"`
	UseNodeName     bool `conf:"use_node_name"` // takes the agent's name in place of the machine's, also with disable_hostname
	// PrefixFilter says what is sent, by prefixes of names as they are sent, host left out: "+muster.raft" sends,
	// "-muster.server.broker" does not. The longest prefix of a name counts. What is served at /v1/metrics is not filtered.
	PrefixFilter  []string `conf:"prefix_filter"`
	FilterDefault bool     `conf:"filter_default"` // whether names are sent that no rule of prefix_filter matches; default true

	PrometheusMetrics        bool `conf:"prometheus_metrics"`         // accepted: figures of GPUs by task are always on, and there are none of processors and memory
	PublishAllocationMetrics bool `conf:"publish_allocation_metrics"` // accepted: always on
	PublishNodeMetrics       bool `conf:"publish_node_metrics"`       // accepted: always on
}

// Defaults that pages name.
const (
	portHTTP       = structs.PortHTTP
	portRPC        = structs.PortCalls
	portSerf       = structs.PortGossip
	gpuIdleDefault = 30 * time.Minute
)

// Defaults returns the configuration before any file is read.
func Defaults() *Config {
	c := &Config{
		Region: "global", Datacenter: "dc1", LogLevel: "INFO", LogRotateDuration: 24 * time.Hour,
		Ports:  Ports{HTTP: portHTTP, RPC: portRPC, Serf: portSerf},
		Limits: Limits{HTTPMaxConnsPerClient: 100, HTTPMaxRatePerClient: 5000, HTTPMaxRatePerToken: 5000, HTTPWrongTokenDelay: 100 * time.Millisecond, RPCMaxConnsPerClient: 100, AllocMaxRatePerToken: structs.AllocRateDefault},
		Client: Client{NodePool: "default", GPUIdle: gpuIdleDefault},

		Telemetry: Telemetry{CollectionInterval: 10 * time.Second, FilterDefault: true},
	}
	c.Plugin.NVIDIA.Config.Enabled = true
	c.Plugin.Docker.Config.Enabled, c.Plugin.Docker.Config.GC.Image = true, true
	return c
}

// Reloadable is the part of the configuration that SIGHUP changes in a running agent, in addition to the content of the
// certificate files.
type Reloadable struct {
	LogLevel string
}

// Reloadable returns that part of the configuration.
func (c *Config) Reloadable() Reloadable { return Reloadable{LogLevel: c.LogLevel} }
