job "a" {
  prioritty = 50
}
