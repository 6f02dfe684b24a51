job "a" "b" {
}
