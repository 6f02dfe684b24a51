job "a" {
  priority = "high"
}
