job "a" {
  priority = 1
  priority = 2
}
