job "a" {
  group "g" {
    task "t" {
      driver = "exec"
      config {
        command = "${foo.bar}"
      }
    }
  }
}
