job "a" {
  group {
  }
}
