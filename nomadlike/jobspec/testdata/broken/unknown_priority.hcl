job "a" {
  priority = "urgent"
}
