job "a" {
  name = upper(attr.kernel.name)
}
