job "a" {
  group "g" {
    task "t" {
      driver = "exec"
      resources {
        cpu = 1
      }
      resources {
        cpu = 2
      }
    }
  }
}
