job "a" {
  meta { a = "1" b = "2" }
}
