variable "n" {
  type    = number
  default = "many"
}
job "a" {
  priority = var.n
}
