job "a" {
  name = uper("x")
}
