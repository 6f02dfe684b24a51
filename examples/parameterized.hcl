# A template of jobs: each dispatch runs it with other parameters.
#   muster job dispatch -meta model=small evaluate
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "evaluate" {
  type = "batch"

  parameterized {
    meta_required = ["model"]
    payload       = "optional"
  }

  group "evaluate" {
    task "evaluate" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "echo evaluating model $NOMAD_META_model"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
