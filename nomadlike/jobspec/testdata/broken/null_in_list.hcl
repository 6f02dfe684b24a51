job "a" {
  datacenters = ["a", null]
}
