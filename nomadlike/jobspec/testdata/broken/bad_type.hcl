variable "n" {
  type = strng
}
job "a" {}
