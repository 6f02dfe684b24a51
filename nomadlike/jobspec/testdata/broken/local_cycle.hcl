locals {
  a = local.b
  b = local.a
}
job "a" {
  name = local.a
}
