# Ten pieces of work that run to their end. Each knows its number.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "batch" {
  type = "batch"

  group "work" {
    count = 10

    # A piece that fails is tried three times on its node, then twice elsewhere.
    restart {
      attempts = 3
      interval = "10m"
      delay    = "5s"
      mode     = "fail"
    }

    reschedule {
      attempts = 2
      interval = "1h"
    }

    task "piece" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "echo piece $NOMAD_ALLOC_INDEX begins; sleep 2; echo piece $NOMAD_ALLOC_INDEX is done"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
