# A job with one GPU. The server chooses the device; the task sees only that one.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "gpu" {
  type = "batch"

  group "train" {
    count = 1

    task "train" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "echo devices: $NVIDIA_VISIBLE_DEVICES; nvidia-smi -L || echo no nvidia-smi on this node"]
      }

      resources {
        cpu    = 500
        memory = 512

        # Any GPU; "nvidia/gpu/H100" asks for a model.
        device "nvidia/gpu" {
          count = 1

          # Only devices with enough memory.
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "8 GiB"
          }
        }
      }
    }
  }
}
