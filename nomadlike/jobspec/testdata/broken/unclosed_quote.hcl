job "a {
}
