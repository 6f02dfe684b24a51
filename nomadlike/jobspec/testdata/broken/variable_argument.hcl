variable "n" {
  defualt = 5
}
job "a" {}
