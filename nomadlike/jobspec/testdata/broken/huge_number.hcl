job "a" {
  priority = 1e400
}
