job "a" {
  group "g" {
    task "t" {
      driver = "exec"
      resources {
        memmory = 5
        cpus = 3
      }
    }
  }
}
