# A job with the blocks that a first job usually has.
variable "image" {
  type        = string
  default     = "cache:7"
  description = "what to run"
  validation {
    condition     = length(var.image) > 2
    error_message = "An image needs a name."
  }
}

variable "extra" {
  type    = map(string)
  default = { tier = "gold" }
}

locals {
  port_to = local.base + 1
  base    = 6378
  names   = ["a", "b"]
}

job "example" {
  datacenters = ["dc1", "dc*"]
  type        = "service"
  priority    = 60
  queue       = "research/nlp"

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }
  constraint {
    distinct_hosts = true
  }
  affinity {
    attribute = "${node.datacenter}"
    value     = "dc1"
    weight    = 30
  }
  spread {
    attribute = "${meta.rack}"
    target "r1" {
      percent = 70
    }
  }
  update {
    max_parallel      = 1
    min_healthy_time  = "10s"
    healthy_deadline  = "3m"
    progress_deadline = "10m"
    auto_revert       = false
    canary            = 0
  }
  migrate {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "10s"
    healthy_deadline = "5m"
  }
  meta = merge(var.extra, { "owner" = upper("team") })

  group "cache" {
    count = 2
    network {
      port "db" {
        to = local.port_to
      }
      port "metrics" {
        static = 9100
      }
      dynamic "port" {
        for_each = local.names
        labels   = ["dyn_${port.value}"]
        content {
          to = 8000 + port.key
        }
      }
    }
    service {
      name     = "cache"
      tags     = ["global", "cache"]
      port     = "db"
      provider = "nomad"
      check {
        name     = "alive"
        type     = "tcp"
        interval = "10s"
        timeout  = "2s"
        header {
          X-Test = ["1", "2"]
        }
      }
    }
    restart {
      attempts = 2
      interval = "30m"
      delay    = "15s"
      mode     = "fail"
    }
    ephemeral_disk = { size = 500 }

    task "redis" {
      driver = "docker"
      config {
        image   = "cache"
        command = "/usr/bin/cache"
        args    = ["-port", "${NOMAD_PORT_db}", "-id", "x-${NOMAD_ALLOC_ID}-${var.image}", "${env["HOME"]}"]
        mount {
          type   = "bind"
          target = "/a"
        }
        mount {
          type   = "tmpfs"
          target = "/b"
        }
      }
      env {
        NODE = "${node.unique.name}"
        BOTH = "${attr.cpu.arch}/${local.base}"
      }
      identity {
        env  = true
        file = true
      }
      logs {
        max_files     = 5
        max_file_size = 15
      }
      resources {
        cpu    = 500
        memory = 256
        device "nvidia/gpu" {
          count = 2
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "20 GiB"
          }
        }
      }
      scaling "cpu" {
        max = 1000
        policy {
          cooldown = "1m"
        }
      }
      kill_timeout = "20s"
      kill_signal  = "SIGINT"
    }
  }
}
