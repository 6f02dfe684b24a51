job "a" {
  group "g" {
    gang = true
    task "t" {
      driver = "exec"
      config { command = "/bin/true" }
      resources { gpu = 2 }
    }
  }
}
