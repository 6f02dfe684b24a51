variable "image" {
  type = string
}
job "a" {
  name = var.image
}
