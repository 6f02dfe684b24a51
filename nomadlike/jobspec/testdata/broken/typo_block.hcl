job "a" {
  gruop "g" {
  }
}
