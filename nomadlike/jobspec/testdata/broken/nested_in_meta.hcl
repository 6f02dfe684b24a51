job "a" {
  meta {
    x {
    }
  }
}
