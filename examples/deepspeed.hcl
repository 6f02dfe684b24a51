# The shape of DeepSpeed's launcher: one program on the first node reads a hostfile and starts the workers on all nodes by a remote
# shell. `muster rsh` is that shell: it reaches only members of this gang, and needs neither ssh nor keys. The workers here are
# plain Python with sockets, because DeepSpeed is not installed everywhere.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "deepspeed" {
  type = "batch"

  group "train" {
    count  = 2
    gang   = { timeout = "10m" }
    launch = { mode = "node", ranks = 2, compat = ["mpi"] }

    task "main" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "[ $MUSTER_NODE_RANK = 0 ] || exec $OMPI_MCA_plm_rsh_agent -wait; exec /usr/bin/python3 local/launch.py"]
      }

      template {
        destination = "local/launch.py"
        data        = <<EOF
import os, socket, subprocess
shell = os.environ["OMPI_MCA_plm_rsh_agent"].split()
hosts = [line.split() for line in open(os.environ["MUSTER_HOSTFILE"]) if line.strip()]
slots = [(host, int(n.split("=")[1])) for host, n in hosts]
world = sum(n for _, n in slots)
server = socket.create_server(("", 0))
worker = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))).sendall(sys.argv[3].encode())"
ranks = [host for host, n in slots for _ in range(n)]
procs = [subprocess.Popen(shell + [host, f"/usr/bin/python3 -c '{worker}' {os.environ['MASTER_ADDR']} {server.getsockname()[1]} {rank}"])
         for rank, host in enumerate(ranks)]
total = 0
for _ in range(world):
    total += int(server.accept()[0].recv(16))
failed = sum(p.wait() != 0 for p in procs)
print(f"launcher: {world} ranks on {len(hosts)} hosts, sum {total}, failed {failed}", flush=True)
EOF
      }

      resources {
        cpu    = 50
        memory = 200
      }
    }
  }
}
