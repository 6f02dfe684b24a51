# Data-parallel training with PyTorch in two members of a gang, which start together or not at all. The agents tell torchrun who
# is there, in PET_* variables, so that it needs no options. With real GPUs use the backend nccl.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

variable "pythonpath" {
  # Further directories of Python modules.
  default = ""
}

variable "gpus" {
  # On each node. One allocation a node with all of its GPUs starts fastest.
  default = 2
}

job "torchrun" {
  type = "batch"

  group "train" {
    count  = 2
    gang   = { timeout = "10m" }
    launch = { mode = "node", compat = ["torchrun"] }

    task "main" {
      driver = var.driver

      config {
        command = "/usr/bin/python3"
        args    = ["-m", "torch.distributed.run", "local/train.py"]
      }

      env {
        PYTHONPATH      = var.pythonpath
        OMP_NUM_THREADS = "1"
      }

      template {
        destination = "local/train.py"
        data        = <<EOF
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(50):
    x = torch.randn(32, 4)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"rank {rank} of {world}: has learned: {loss.item() < 0.5}", flush=True)
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
