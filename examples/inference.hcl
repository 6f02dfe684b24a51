# An inference service on a part of a GPU: 16 GiB of its memory are enforced and a fifth of its multiprocessors is booked, and others
# share the rest. The server here answers with the GPU that it was given; put vLLM or your own in its place.
variable "driver" {
  # Where the agents do not run as root: raw_exec, without isolation.
  default = "exec"
}

job "inference" {
  type = "service"

  group "serve" {
    network {
      port "http" {}
    }

    service {
      name = "inference"
      port = "http"

      check {
        type     = "http"
        path     = "/health"
        interval = "2s"
        timeout  = "2s"
      }
    }

    task "server" {
      driver = var.driver

      config {
        command = "/usr/bin/python3"
        args    = ["local/serve.py", "${NOMAD_PORT_http}"]
      }

      template {
        destination = "local/serve.py"
        data        = <<EOF
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(dict(answer="hello", gpu=os.environ.get("CUDA_VISIBLE_DEVICES", ""))).encode())
    def log_message(self, *args):
        pass
print("serving", flush=True)
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
EOF
      }

      resources {
        cpu    = 100
        memory = 128

        gpu {
          memory  = "16GiB"
          compute = 20
        }
      }
    }
  }
}
