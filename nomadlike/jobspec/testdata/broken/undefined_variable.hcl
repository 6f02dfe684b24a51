variable "image" {
  default = "x"
}
job "a" {
  name = var.imgae
}
