job "a" {
  group = "g"
}
