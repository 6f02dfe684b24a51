job "a" {
  name = upper("x", "y")
}
