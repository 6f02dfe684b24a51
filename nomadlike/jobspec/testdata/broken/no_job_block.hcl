variable "n" {
  default = 1
}

group "g" {
  count = var.n
  task "t" {
    driver = "raw_exec"
  }
}

update {
  max_parallel = 1
}
