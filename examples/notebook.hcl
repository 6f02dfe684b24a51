# The shape of a notebook: a service with a GPU and a port, which ends after eight hours. The server here is Python's own; put
# `jupyter lab` in its place.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "notebook" {
  type    = "service"
  runtime = { limit = "8h" }

  group "notebook" {
    network {
      port "http" {}
    }

    service {
      name = "notebook"
      port = "http"
    }

    task "server" {
      driver = var.driver

      config {
        command = "/usr/bin/python3"
        args    = ["-m", "http.server", "--directory", "local/site", "${NOMAD_PORT_http}"]
      }

      template {
        destination = "local/site/index.html"
        data        = <<EOF
notebook in {{ env "NOMAD_ALLOC_NAME" }}
EOF
      }

      resources {
        cpu    = 50
        memory = 128
        gpu    = { count = 1 }
      }
    }
  }
}
