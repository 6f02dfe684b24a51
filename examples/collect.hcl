# The second step of a pipeline: it starts when the job "sweep" has succeeded, and reads what that has written. When "sweep"
# fails, it is never started.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

variable "dir" {
  # A directory that all nodes share and the task's user may write to. /var/tmp does on one machine.
  default = "/var/tmp"
}

job "collect" {
  type = "batch"

  depends_on "sweep" {
    when    = "success"
    timeout = "24h"
  }

  group "report" {
    task "report" {
      driver = var.driver

      config {
        command = "/usr/bin/python3"
        args    = ["local/report.py", "${var.dir}/sweep"]
      }

      template {
        destination = "local/report.py"
        data        = <<EOF
import glob, json, sys
results = [json.load(open(path)) for path in glob.glob(sys.argv[1] + "/*.json")]
best = min(results, key=lambda r: r["loss"])
print(f"best of {len(results)}: index {best['index']}, lr {best['lr']}, loss {best['loss']:.3f}")
EOF
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
