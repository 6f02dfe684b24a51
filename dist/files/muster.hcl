# Configuration of this machine's agent. All *.hcl and *.json files of this directory are read. Check with:
#   muster config validate /etc/muster.d
# Every key: docs/reference/agent.md. A cluster of three servers: docs/operate/install.md.

data_dir = "/var/lib/muster"

# bind_addr = "10.0.0.1"

# A server. Three or five of them replicate the state.
#
# server {
#   enabled          = true
#   bootstrap_expect = 3
#   encrypt          = "THE KEY FROM muster operator gossip keyring generate"
#   server_join {
#     retry_join = ["10.0.0.1:4648", "10.0.0.2:4648", "10.0.0.3:4648"]
#   }
# }

# A client, which runs tasks.
#
# client {
#   enabled = true
#   servers = ["10.0.0.1:4647", "10.0.0.2:4647", "10.0.0.3:4647"]
# }
