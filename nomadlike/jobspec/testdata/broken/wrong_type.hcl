job "a" {
  group "g" {
    count = "many"
  }
}
