locals {
  a = 1
}
job "a" {
  name = local.aa
}
