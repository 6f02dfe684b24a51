# A sweep: one job, an allocation for each combination, at most two at a time. Each writes its result to a directory that the
# nodes share; the example "collect" waits for all of them and picks the best.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

variable "dir" {
  # A directory that all nodes share and the task's user may write to. /var/tmp does on one machine.
  default = "/var/tmp"
}

job "sweep" {
  type = "batch"

  array {
    count       = 4
    concurrency = 2
    params = {
      LR   = ["0.1", "0.1", "0.01", "0.01"]
      SEED = ["1", "2", "1", "2"]
    }
  }

  group "train" {
    task "train" {
      driver = var.driver

      config {
        command = "/usr/bin/python3"
        args    = ["local/train.py", "${MUSTER_ARRAY_INDEX}", "${MUSTER_PARAM_LR}", "${MUSTER_PARAM_SEED}", "${var.dir}/sweep"]
      }

      template {
        destination = "local/train.py"
        data        = <<EOF
import json, os, sys
index, lr, seed, out = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
loss = abs(lr - 0.02) + seed / 1000
os.makedirs(out, exist_ok=True)
with open(f"{out}/{index}.json", "w") as f:
    json.dump(dict(index=index, lr=lr, seed=seed, loss=loss), f)
print(f"index {index}: lr {lr}, seed {seed}: loss {loss:.3f}")
EOF
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
