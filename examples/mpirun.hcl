# MPI: mpirun on the first member starts the ranks of all. It finds hostfile and remote shell in its environment (compat "mpi").
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "mpi" {
  type = "batch"

  group "solve" {
    count  = 2
    gang   = { timeout = "10m" }
    launch = { mode = "node", ranks = 2, compat = ["mpi"] }

    task "main" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "[ $MUSTER_NODE_RANK = 0 ] || exec $OMPI_MCA_plm_rsh_agent -wait; exec mpirun -np $MUSTER_WORLD_SIZE /bin/sh -c 'echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE'"]
      }

      resources {
        cpu    = 50
        memory = 300
      }
    }
  }
}
