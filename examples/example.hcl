# A job is what you submit: groups of tasks that run together on a node.
# Try it:  muster agent -dev     (in another terminal)
#          muster job run example.muster.hcl
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "example" {
  # service: keeps running. batch: runs to its end. system: one on every node. sysbatch: both.
  type = "service"

  # Between 1 and 100; work of higher priority is placed first.
  priority = 50

  group "hello" {
    # How many allocations of this group run, each with all tasks of the group.
    count = 1

    # What happens on the node when a task fails.
    restart {
      attempts = 2
      interval = "5m"
      delay    = "5s"
      mode     = "fail"
    }

    task "greet" {
      # exec runs a process isolated and under limits; raw_exec runs a plain one.
      driver = var.driver

      config {
        command = "/bin/sh"
        args = [
          "-c",
          "i=0; while true; do i=$((i+1)); echo \"hello number $i from $NOMAD_ALLOC_NAME\"; sleep 1; done",
        ]
      }

      # Where the output goes: muster alloc logs -f <allocation>
      logs {
        max_files     = 2
        max_file_size = 5
      }

      # What the task needs. cpu is in MHz, memory in MB.
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
