# Work that takes GPUs which nobody else wants, and gives them back at once: it is told by a signal, saves its step, and continues
# from there when GPUs are free again.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

variable "dir" {
  # A directory that all nodes share and the task's user may write to. /var/tmp does on one machine.
  default = "/var/tmp"
}

job "scavenger" {
  type        = "batch"
  priority    = "scavenger"
  preemptible = true
  requeue     = { on = ["preempt", "node_lost"], max = 100 }

  group "work" {
    checkpoint = { dir = "${var.dir}", path = "scavenger.step", on = ["preempt", "drain"], grace = "30s", signal = "SIGUSR1" }

    task "main" {
      driver = var.driver

      config {
        command = "/usr/bin/python3"
        args    = ["local/work.py", "100"]
      }

      template {
        destination = "local/work.py"
        data        = <<EOF
import os, pathlib, signal, sys, time
path = pathlib.Path(os.environ["MUSTER_CHECKPOINT_DIR"], "scavenger.step")
step, told = int(path.read_text()) if path.exists() else 0, []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
print(f"begins at step {step}", flush=True)
while step < int(sys.argv[1]) and not told:
    time.sleep(0.1)
    step += 1
    if step % 20 == 0:
        print(f"at step {step}", flush=True)
new = path.with_suffix(".tmp")
new.write_text(str(step))
new.rename(path)
print(f"saved step {step}", flush=True)
EOF
      }

      resources {
        cpu    = 50
        memory = 64
        gpu    = { count = 8 }
      }
    }
  }
}
