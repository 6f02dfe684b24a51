package agentconfig

// noEffect are keys, by section, that configuration files of other schedulers may have and that have no meaning here.
// They are accepted with a warning that gives the reason, so that an existing file can be tried unchanged; "*" stands
// for any key. Keys that restrict something are in refused: ignoring them would be unsafe.
var noEffect = map[string]map[string]string{
	"": {
		"plugin_dir":                "drivers are built in",
		"enable_syslog":             "log to standard error and let the service manager keep it",
		"syslog_facility":           "there is no syslog output",
		"eventlog":                  "there is no Windows event log output",
		"vault":                     "Vault is not spoken to",
		"consul":                    "Consul is not spoken to",
		"sentinel":                  "there are no Sentinel policies",
		"autopilot":                 "set it with `muster operator autopilot set-config`",
		"audit":                     "there is no audit log in files; follow the event stream",
		"http_api_response_headers": "no headers are added",
		"reporting":                 "nothing is reported to anyone",
		"keyring":                   "keys are kept in the servers' keystores, in data_dir",
		"ui":                        "there is no web interface",
		"rpc":                       "the session multiplexer has no settings",
	},
	"server": {
		"data_dir": "the server part keeps its state in data_dir/server", "rejoin_after_leave": "a server that left joins again by itself",
		"protocol_version": "there is one protocol version", "raft_protocol": "raft speaks version 3",
		"num_schedulers": "one pass runs for each node pool", "enabled_schedulers": "all kinds of jobs are scheduled",
		"deployment_gc_threshold": "deployments go with their job", "csi_volume_claim_gc_interval": noCSI, "csi_volume_claim_gc_threshold": noCSI, "csi_plugin_gc_threshold": noCSI,
		"csi_volume_secret_gc_threshold": noCSI, "acl_token_gc_threshold": "expired tokens go in the next round of job_gc_interval", "root_key_gc_interval": keys, "root_key_gc_threshold": keys, "root_key_rotation_threshold": keys,
		"heartbeat_grace": ttl, "min_heartbeat_ttl": ttl, "max_heartbeats_per_second": ttl, "failover_heartbeat_ttl": ttl,
		"non_voting_server": "every server votes", "redundancy_zone": "there are no redundancy zones", "upgrade_version": "servers are upgraded one by one",
		"authoritative_region": "regions do not replicate from each other", "license_path": "there is no licence", "license_env": "there is no licence",
		"default_scheduler_config": "set it with `muster operator scheduler set-config`", "plan_rejection_tracker": "nodes are not judged by rejected plans",
		"event_buffer_size": "the event buffer has a fixed size", "enable_event_broker": "the event stream is always on",
		"job_max_source_size":  "sources are kept to 1 MiB",
		"job_tracked_versions": "versions live as long as an allocation refers to them", "job_max_count": "a job's size is bounded by one log entry",
		"client_introduction": "with ACLs, a client always needs a certificate or an introduction token", "search": "searches have fixed limits",
		"deployment_query_rate_limit": "deployments are not polled", "retry_max": "joining is tried for ever", "start_timeout": "a server waits for nothing when it starts",
	},
	"server.raft_logstore": {"verification": "every entry has a checksum, which is verified whenever it is read"},
	"server.server_join":   {"retry_max": "joining is tried for ever"},
	"client.server_join":   {"retry_max": "joining is tried for ever"},
	"client": {
		"state_dir": "state is kept in data_dir/client", "alloc_mounts_dir": "mounts are made within the allocation's directory", "chroot_env": "the exec driver shows the machine's directories read-only",
		"no_host_uuid": "the node's id never comes from the machine", "gc_volumes_on_client_gc": "there are no dynamic host volumes", "template": "templates have fixed settings",
		"artifact": "artifacts have fixed limits", "cni_path": noCNI, "cni_config_dir": noCNI,
		"bridge_network_subnet_ipv6": "the bridge network is one of IPv4", "bridge_network_hairpin_mode": "it is always on", "host_network": "there is one network", "nomad_service_discovery": "services are always registered (docs/operate/services.md)",
		"cgroup_parent": "control groups are made below the agent's own", "reservable_cores": "all cores but client.reserved.cores can be reserved",
		"cpu_disable_dmidecode": "dmidecode is not run", "preferred_address_family": "the address of the interface is taken",
		"users": "there are no dynamic users", "fingerprint": "fingerprints have no settings", "node_max_allocs": "allocations are bounded by resources",
		"host_volume_plugin_dir": "there are no dynamic host volumes", "host_volumes_dir": "there are no dynamic host volumes", "common_plugin_dir": "drivers are built in",
		"log_file_permission": "log files are the allocation's", "heartbeat_grace": ttl, "max_dynamic_ports": "set min_dynamic_port and max_dynamic_port",
	},
	"plugin":          {"*": "there is no such driver here; drivers are docker, exec and raw_exec, devices come from nvidia"},
	"plugin.raw_exec": {"args": "drivers are built in"},
	"plugin.exec":     {"args": "drivers are built in"},
	"plugin.docker":   {"args": "drivers are built in"},
	"plugin.nvidia":   {"args": "it is built in"},
	"plugin.docker.config": {
		"tls": "name the engine's socket, or a tunnel's", "logging": "the agent collects the logs", "extra_labels": "containers carry the labels of their node, allocation and task",
		"infra_image": "containers do not join the network of their allocation", "infra_image_pull_timeout": "containers do not join the network of their allocation", "disable_log_collection": "a task's logs block can disable them", "pids_limit": "tasks have the agent's limit",
		"image_pull_timeout": "a job may set it; a pull ends when it makes no progress", "nvidia_runtime": "it is called nvidia", "container_exists_attempts": "containers are found again by name",
		"oom_score_adj": "a job may set it", "windows_allow_insecure_container_admin": "it is for Windows",
	},
	"plugin.docker.config.gc":      {"container": "containers are removed when the servers know how they ended", "dangling_containers": "containers of this agent that belong to no task are removed"},
	"plugin.docker.config.volumes": {"selinuxlabel": "labels are the engine's"},
	"plugin.raw_exec.config": {
		"no_cgroups": "control groups are used when there are any", "denied_envvars": "tasks get a fixed list of the agent's variables",
	},
	"plugin.exec.config": {
		"no_pivot_root": "the root is always changed", "default_pid_mode": "tasks have process ids of their own", "default_ipc_mode": "tasks have IPC of their own",
	},
	"acl": {
		"token_ttl": cacheTTL, "policy_ttl": cacheTTL, "role_ttl": cacheTTL, "replication_token": "regions do not replicate from each other",
		"token_min_expiration_ttl": "any expiry is taken", "token_max_expiration_ttl": "any expiry is taken",
	},
	"tls": {
		"rpc_upgrade_mode": "there is no plaintext next to TLS", "tls_min_version": "it is TLS 1.3", "tls_cipher_suites": "TLS 1.3 has no choice of suites",
		"tls_prefer_server_cipher_suites": "TLS 1.3 has no choice of suites", "checksum": "certificates are compared by content",
	},
	"limits": {
		"https_handshake_timeout": "handshakes have a fixed time limit", "rpc_handshake_timeout": "handshakes have a fixed time limit", "rpc_default_write_rate": "there is no rate limit",
		"rpc_max_burst": "there is no rate limit", "http_max_burst": "bursts are four seconds of http_max_rate_per_client",
	},
	"telemetry": {
		"in_memory_collection_interval": "it is collection_interval", "in_memory_retention_period": "one interval is shown",
		"*": "metrics are served to Prometheus and sent to statsd, statsite and DogStatsD",
	},
}

// refused are keys that restrict what may be done, with the alternative. The values false and empty are accepted.
var refused = map[string]map[string]string{
	"client":                 {"disable_remote_exec": "deny alloc-exec and alloc-node-exec with ACL policies instead"},
	"plugin.raw_exec.config": {"denied_host_uids": "name users in client.options \"user.denylist\" instead", "denied_host_gids": "name users in client.options \"user.denylist\" instead"},
	"plugin.exec.config":     {"denied_host_uids": "name users in denied_users instead", "denied_host_gids": "name users in denied_users instead"},
}

const (
	keys     = "keys are rotated and removed by `muster operator root keyring`, not by time"
	ttl      = "the servers choose the time between heartbeats"
	noCSI    = "there are no CSI volumes"
	noCNI    = "there are no CNI plugins"
	cacheTTL = "tokens and policies are read from state, not cached"
)
