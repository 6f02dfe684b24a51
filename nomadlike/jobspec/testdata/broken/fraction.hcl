job "a" {
  priority = 1.5
}
