job "u" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/echo"
        args = [${NOMAD_ALLOC_ID}]
      }
    }
  }
}
