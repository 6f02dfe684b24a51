job "a" {
  priority {
  }
}
