# A service of three instances with a port each, spread over the nodes and updated one at a time.
job "web" {
  type = "service"

  # One at a time; the old instance stops when the new one runs.
  update {
    max_parallel = 1
  }

  group "web" {
    count = 3

    # The port is chosen on the node and told to the task as NOMAD_PORT_http.
    network {
      port "http" {}
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
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo serving on port $NOMAD_PORT_http; exec sleep 1000000"]
      }

      # Time between the signal to stop and the kill.
      kill_timeout = "10s"

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
