job "a" {
  constraint {
    attribute = attr.kernel.name
    value     = "linux"
  }
}
