job "a" {
  group "g" {
    task "t" {
      driver = "exec"
      env {
        A = "1"
      }
      env = { B = "2" }
    }
  }
}
