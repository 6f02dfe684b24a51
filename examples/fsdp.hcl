# Sharded training: each rank owns a part of the parameters and saves its own shard, as FSDP does. The agents start the ranks
# (launch mode "rank"), so that no launcher is needed. When a member is lost the gang starts again, and continues from the newest
# step of which all shards were saved.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

variable "dir" {
  # A directory that all nodes share and the task's user may write to. /var/tmp does on one machine.
  default = "/var/tmp"
}

variable "gpus" {
  # On each node. One allocation a node with all of its GPUs starts fastest.
  default = 2
}

job "fsdp" {
  type = "batch"

  group "train" {
    count      = 2
    gang       = { timeout = "10m", on_failure = "restart_all" }
    launch     = { mode = "rank" }
    checkpoint = { dir = "${var.dir}", path = "fsdp-*.pt", on = ["preempt", "drain"], grace = "30s", signal = "SIGUSR1" }

    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts       = 0
      unlimited      = true
      delay          = "5s"
      delay_function = "constant"
    }

    task "main" {
      driver = var.driver

      config {
        command = "/usr/bin/python3"
        args    = ["local/train.py", "150"]
      }

      env {
        OMP_NUM_THREADS = "1"
      }

      template {
        destination = "local/train.py"
        data        = <<EOF
import os, signal, sys, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world, steps = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
base = f"{os.environ['MUSTER_CHECKPOINT_DIR']}/fsdp-{rank}"
def load(path):
    return torch.load(path) if os.path.exists(path) else dict(step=0, shard=torch.zeros(2))
state = load(base + ".pt")
common = torch.tensor([state["step"]])
dist.all_reduce(common, op=dist.ReduceOp.MIN)
if common.item() < state["step"]:
    state = load(base + ".before.pt")
first, shard = state["step"], state["shard"]
print(f"rank {rank} of {world} starts at step {first}", flush=True)
for step in range(first, steps):
    parts = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(parts, shard)
    shard = shard + 1
    torch.save(dict(step=step + 1, shard=shard), base + ".tmp")
    dist.barrier()
    if os.path.exists(base + ".pt"):
        os.rename(base + ".pt", base + ".before.pt")
    os.rename(base + ".tmp", base + ".pt")
    time.sleep(0.1)
print(f"rank {rank}: {steps} steps, shard {shard.tolist()}", flush=True)
dist.barrier()
EOF
      }

      resources {
        cpu    = 50
        memory = 1000
        gpu    = { count = var.gpus }
      }
    }
  }
}
