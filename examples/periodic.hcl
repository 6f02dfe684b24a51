# A job that the clock starts: every night at two, and never twice at once. Start it now with:  muster job periodic force nightly
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "nightly" {
  type = "batch"

  periodic {
    cron             = "0 2 * * *"
    time_zone        = "UTC"
    prohibit_overlap = true
  }

  group "report" {
    task "report" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "echo the nightly report of $NOMAD_JOB_PARENT_ID"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
