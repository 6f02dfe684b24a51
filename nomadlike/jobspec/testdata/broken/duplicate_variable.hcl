variable "n" {
  default = 5
}
variable "n" {
  default = 6
}
job "a" {}
