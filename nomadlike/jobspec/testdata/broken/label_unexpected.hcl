job "a" {
  group "g" {
    task "t" {
      driver = "exec"
      resources "x" {
      }
    }
  }
}
