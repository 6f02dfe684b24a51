# Elastic training: at least one member, and up to three while nobody else waits for the GPUs. All members restart with a new epoch
# when their number changes. The program here only says who it is; a real one begins with its newest checkpoint.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "elastic" {
  type = "batch"

  group "train" {
    count      = 1
    gang       = {}
    elastic    = { min = 1, max = 3 }
    checkpoint = { signal = "SIGUSR1", grace = "30s" }

    task "main" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' USR1; echo epoch $MUSTER_GANG_EPOCH: member $MUSTER_NODE_RANK of $MUSTER_NNODES; while true; do sleep 0.1; done"]
      }

      resources {
        cpu    = 50
        memory = 32
        gpu    = { count = 1 }
      }
    }
  }
}
