job "a" {
  datacenters = "dc1"
}
