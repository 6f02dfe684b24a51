# A web service of two instances: a port each, a name in the service registry, a health check, and updates one at a time.
# Find it with:  muster service info web
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "web" {
  type = "service"

  # The old instance stops when the new one passes its checks.
  update {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "2s"
  }

  group "web" {
    count = 2

    # The node chooses the port. The task finds it in NOMAD_PORT_http.
    network {
      port "http" {}
    }

    service {
      name = "web"
      port = "http"

      check {
        type     = "http"
        path     = "/"
        interval = "2s"
        timeout  = "2s"

        # Three failures in a row restart the task.
        check_restart {
          limit = 3
          grace = "30s"
        }
      }
    }

    # Failed instances are placed elsewhere, later and later.
    reschedule {
      delay          = "10s"
      delay_function = "exponential"
      max_delay      = "10m"
      unlimited      = true
    }

    # Rather on different nodes.
    spread {
      attribute = "${node.unique.id}"
    }

    task "server" {
      driver = var.driver

      config {
        command = "/usr/bin/python3"
        args    = ["-m", "http.server", "--directory", "local/site", "${NOMAD_PORT_http}"]
      }

      template {
        destination = "local/site/index.html"
        data        = <<EOF
hello from {{ env "NOMAD_ALLOC_NAME" }}
EOF
      }

      # Time between the signal to stop and the kill.
      kill_timeout = "10s"

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
