job "a" {
  group "g" {
    network {
      dynamic "port" {
        foreach = [1]
        content {
        }
      }
    }
    task "t" {
      driver = "exec"
    }
  }
}
