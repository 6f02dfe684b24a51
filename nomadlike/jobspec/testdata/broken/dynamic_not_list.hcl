job "a" {
  group "g" {
    network {
      dynamic "port" {
        for_each = 5
        labels   = ["x"]
        content {
        }
      }
    }
    task "t" {
      driver = "exec"
    }
  }
}
