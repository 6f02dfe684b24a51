job "a" {
  group "g" {
    task "t" {
      driver = "fake"
      config {
        command = "sleep"
      }
      resources {
        memory = "2GB"
        gpu {
          memory = "20GB"
        }
      }
    }
  }
}
