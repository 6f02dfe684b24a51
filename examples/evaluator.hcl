# A trainer and its evaluator in one job, on one node: they share the directory of the allocation. The evaluator looks at each new
# checkpoint; it ends with the trainer, which is the leader.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "pair" {
  type = "batch"

  group "pair" {
    task "trainer" {
      driver = var.driver
      leader = true

      config {
        command = "/bin/sh"
        args    = ["-c", "for i in 1 2 3; do sleep 1; echo saved > $NOMAD_ALLOC_DIR/data/ckpt-$i; done; sleep 1"]
      }

      resources {
        cpu    = 50
        memory = 32
        gpu    = { count = 1 }
      }
    }

    task "evaluator" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "n=1; while true; do if [ -e $NOMAD_ALLOC_DIR/data/ckpt-$n ]; then echo evaluated checkpoint $n; n=$((n+1)); fi; sleep 0.1; done"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
