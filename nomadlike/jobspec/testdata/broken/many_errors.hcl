job "a" {
  prioritty = 1
  datacenter = ["x"]
  group "g" {
    cuont = 2
    task "t" {
      drver = "exec"
      resources {
        cpu = "fast"
      }
    }
  }
}
