variable "n" {
  default = 5
  validation {
    condition     = var.n > 10
    error_message = "n must be more than 10"
  }
}
job "a" {}
