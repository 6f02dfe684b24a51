job "a" {
  name = file("/etc/shadow")
}
