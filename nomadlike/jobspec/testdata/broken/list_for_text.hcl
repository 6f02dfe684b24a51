job "a" {
  type = ["batch"]
}
