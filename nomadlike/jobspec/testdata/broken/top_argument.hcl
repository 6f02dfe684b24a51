priority = 3
job "a" {}
