# Every setting of an agent, with its default or an example. The JSON form has the same keys.

name       = "node-1" # default: the host's name
region     = "global"
datacenter = "dc1"
data_dir   = "/var/lib/muster" # required

bind_addr = "127.0.0.1" # 0.0.0.0 once TLS, ACLs and a gossip key are configured
addresses {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1:4647"
  serf = "127.0.0.1:4648"
}
ports {
  http = 4646
  rpc  = 4647
  serf = 4648
}

server {
  enabled          = true
  bootstrap_expect = 3
  encrypt          = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
  join_key         = "" # servers prove themselves by their certificates
  start_join       = []
  retry_join       = []
  retry_interval   = "5s"
  server_join {
    start_join     = []
    retry_join     = ["127.0.0.1:4648"]
    retry_interval = "5s"
  }
  job_max_priority        = 80
  job_default_priority    = 40
  job_gc_interval         = "10m"
  job_gc_threshold        = "24h"
  eval_gc_threshold       = "2h"
  batch_eval_gc_threshold = "48h"
  node_gc_threshold       = "72h"
  acct_retention          = "2160h"
  acct_max_records        = 50000
  oidc_issuer             = "https://muster.example.com"
  raft_multiplier         = 1
  decision_log            = "/var/log/muster/decisions.jsonl"
  restart_grace           = "60s"
  gossip_nodes            = 2000
  raft_trailing_logs      = 10240
  raft_snapshot_threshold = 16384
  raft_snapshot_interval  = "30s"
  bundles_max_mb          = 2048
  raft_logstore {
    backend           = "wal"
    disable_log_cache = false
    boltdb {
      no_freelist_sync = false
    }
    wal {
      segment_size_mb = 16
    }
  }
  raft_boltdb {
    no_freelist_sync = false # as in raft_logstore
  }
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
  server_join {
    start_join     = []
    retry_join     = []
    retry_interval = "0s" # a client chooses it itself
  }
  intro_token = "" # clients prove themselves by their certificates
  gossip_join = []
  options = {
    "driver.raw_exec.enable" = "1"
    "user.denylist"          = "root,Administrator"
  }
  meta {
    rack = "r1"
  }
  node_class = "gpu"
  node_pool  = "default"
  reserved {
    cpu            = 500
    memory         = 512
    disk           = 1024
    cores          = "0"
    reserved_ports = "22,8000-8099"
  }
  host_volume "scratch" {
    path      = "/var/tmp"
    read_only = false
  }
  network_interface = "lo"
  network_speed     = 1000

  bridge_network_name   = "muster"
  bridge_network_subnet = "172.26.64.0/20"

  cpu_total_compute = 16000
  memory_total_mb   = 32768
  disk_total_mb     = 100000
  alloc_dir         = "/var/lib/muster/client/allocs"
  min_dynamic_port  = 20000
  max_dynamic_port  = 32000
  max_kill_timeout  = "30s"
  egress {
    allow = ["169.254.20.0/24"]
    deny  = ["10.0.99.0/24"]
  }
  run_as {
    allow = ["submitter", "@research", "svc-*"]
    deny  = ["root"]
  }
  fabric {
    interfaces    = ["ib0"]
    hcas          = ["mlx5_0:1", "mlx5_1:1"]
    leaf          = "leaf-3"
    service_level = 3
    traffic_class = 106
    rdma_dir      = "/dev/infiniband"
    env = {
      NCCL_IB_GID_INDEX = "3"
    }
  }
  hooks {
    prolog {
      command = ["/usr/local/sbin/node-check", "-gpus"]
      timeout = "1m"
    }
    epilog {
      command = ["/usr/local/sbin/node-clean"]
      timeout = "1m"
    }
    health {
      command  = ["/usr/local/sbin/node-health"]
      timeout  = "30s"
      interval = "5m"
    }
  }
  gpu_idle = "1h"

  gpu_pressure {
    share  = [80, 95]
    device = [95]
    clear  = 5
    command {
      command = ["/usr/local/sbin/gpu-full"]
      timeout = "10s"
    }
    webhook "scratch" {
      url         = "https://hooks.example.com/gpu"
      secret_file = "/etc/muster/hook.key"
      timeout     = "5s"
      attempts    = 5
      headers = {
        X-Token = "t"
      }
    }
  }
  drain_on_shutdown {
    deadline           = "1m"
    force              = false
    ignore_system_jobs = false
  }
  gc_interval              = "1m"
  gc_disk_usage_threshold  = 80
  gc_inode_usage_threshold = 70
  gc_max_allocs            = 50
  gc_max_age               = "72h"
  gc_parallel_destroys     = 2
}

plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "exec" {
  config {
    default_user = "nobody"
    denied_users = ["root"]
    allow_caps   = ["net_bind_service", "ipc_lock"]
    seccomp      = "default"
    nofile       = 65536
    rootfs_dirs  = ["/srv/images"]
  }
}
plugin "docker" {
  config {
    enabled               = true
    endpoint              = "unix:///var/run/docker.sock"
    allow_privileged      = false
    allow_caps            = ["chown", "dac_override", "kill", "net_bind_service", "setgid", "setuid"]
    allow_runtimes        = ["runc", "nvidia"]
    allow_devices         = ["/dev/fuse", "/dev/infiniband/*"]
    pull_activity_timeout = "2m"
    gpu                   = "auto"
    cdi_dir               = "/var/run/cdi"
    volumes {
      enabled = false
    }
    auth {
      config = "/root/.docker/config.json"
      helper = "ecr-login"
    }
    gc {
      image       = true
      image_delay = "3m"
    }
  }
}
plugin "nvidia" {
  config {
    enabled            = true
    ignored_gpu_ids    = ["GPU-00000000-0000-0000-0000-000000000000"]
    fingerprint_period = "5s"
    library            = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    xid {
      ignore     = [92]
      program    = [69]
      degrade    = [74]
      quarantine = [94]
    }
  }
}

acl {
  enabled     = false
  login_nodes = ["b8a1f3a0-6d1c-4f0e-9f62-0d1f6a3d7c55"]
}

tls {
  http                   = false
  rpc                    = false
  ca_file                = "/etc/muster/tls/ca.pem"
  cert_file              = "/etc/muster/tls/agent.pem"
  key_file               = "/etc/muster/tls/agent-key.pem"
  verify_server_hostname = true
  verify_https_client    = false
}

limits {
  http_max_conns_per_client = 100
  http_max_conns            = 20000
  http_max_rate_per_client  = 2000
  http_max_rate_per_token   = 1000
  http_wrong_token_delay    = "250ms"
  rpc_max_conns_per_client  = 100
  alloc_max_rate_per_token  = 500
}

telemetry {
  unauthenticated_metrics_access = true
  prometheus_metrics         = true
  publish_allocation_metrics = true
  publish_node_metrics       = true

  statsd_address      = "127.0.0.1:8125"
  statsite_address    = "127.0.0.1:8126"
  datadog_address     = "127.0.0.1:8127"
  datadog_tags        = ["team:ml"]
  collection_interval = "10s"
  disable_hostname    = true
  use_node_name       = false
  prefix_filter       = ["-muster.raft", "+muster.raft.apply"]
  filter_default      = true
}

log_level            = "INFO"
log_json             = false
log_include_location = false
log_file             = ""
log_rotate_bytes     = 0
log_rotate_duration  = "24h"
log_rotate_max_files = 0

leave_on_interrupt = false
leave_on_terminate = false
enable_debug       = false

http_allowed_hosts = ["muster.example.com", "*.proxy.example.com"]

insecure = false

disable_update_check        = true
disable_anonymous_signature = true
