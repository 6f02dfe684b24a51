job "a" {
  group "g" {
    network {
      dynamic "port" {
        for_each = [1]
      }
    }
    task "t" {
      driver = "exec"
    }
  }
}
